"""Real processes for the pages, as tests/e2e has them."""

from tests.e2e.conftest import marked as marked
