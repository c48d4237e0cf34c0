"""Runs of studies are done in the test's process, but for tests that are marked e2e."""

import pytest

from tests.jobs_here import jobs_here

__all__ = ["jobs_here"]


@pytest.fixture(autouse=True)
def _here_unless_e2e(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("e2e") is None:
        request.getfixturevalue("jobs_here")
