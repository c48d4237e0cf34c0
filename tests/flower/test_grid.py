"""What fedappeal.flower.grid relies on: the function by which Flower's HTTP grid waits for objects."""

import inspect
import time

import pytest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects
from flwr.superlink.grid import http_grid

from fedappeal.flower import grid


def test_the_grid_waits_by_a_function_of_its_module_with_these_settings() -> None:
    assert "pull_objects(" in inspect.getsource(http_grid)
    assert http_grid.pull_objects is pull_objects
    parameters = inspect.signature(pull_objects).parameters
    assert parameters["initial_backoff"].default == 1, "a whole second, as the docstring says"
    assert "backoff_cap" in parameters


def test_an_object_on_its_way_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_grid, "pull_objects", pull_objects)  # put back after the test
    grid.pull_without_stalls()
    attempts: list[float] = []

    def pull(object_id: str) -> bytes:
        attempts.append(time.monotonic())
        if len(attempts) < 4:
            raise ObjectUnavailableError(object_id)
        return b"content"

    assert http_grid.pull_objects(["a"], pull) == {"a": b"content"}
    assert attempts[-1] - attempts[0] < 0.5


def test_a_grid_is_given_a_run() -> None:
    assert inspect.signature(Grid.set_run).parameters["run"].annotation in (grid.Run, "Run")
