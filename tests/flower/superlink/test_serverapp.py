"""What `serverapp` relies on: Flower's own command of that name makes the same calls."""

import inspect
import sys
from typing import Any

import pytest
from flwr.superlink import runtime

from fedappeal.flower.superlink import serverapp


def test_flower_runs_a_serverapp_by_these_names(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    wanted = set(inspect.signature(runtime.run_serverapp).parameters)
    monkeypatch.setattr(runtime, "run_serverapp", lambda **named: given.update(named))
    options = ["--runtime-api-address", "127.0.0.1:8000", "--token", "secret", "--insecure", "--parent-pid", "7"]
    monkeypatch.setattr(sys, "argv", ["serverapp", *options])
    serverapp.main()
    assert set(given) == wanted
    assert (given["runtime_api_address"], given["token"], given["parent_pid"]) == ("127.0.0.1:8000", "secret", 7)
    assert (given["insecure"], given["certificates"]) == (True, None)
