"""What all tests share: no deadlines on a busy machine, one thread for small models, and clients without a past."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
settings.register_profile("fedappeal", deadline=None)
settings.load_profile("fedappeal")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Let this process have no clients before and after, and messages of a grid of its own."""
    from client import registry
    from tests.grid import MemoryGrid

    MemoryGrid()  # Flower takes a message's run and source from the process
    registry.forget()
    yield
    registry.forget()
