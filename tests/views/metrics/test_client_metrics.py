"""A client's metrics and its signs of life."""

from pathlib import Path
from typing import Any

import pytest

from client.process.heartbeat import GRACE, Heartbeat, heartbeat_problem
from client.process.serve import Event
from client.state.activity import Activity, Judged
from fedappeal.settings.config import ConfigError

exposition = pytest.importorskip("prometheus_client.exposition", reason="the extra metrics is not installed")


def samples(registry: Any) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    text = exposition.generate_latest(registry).decode()
    return {
        "|".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_clients_metrics_are_what_it_did_in_all_runs(tmp_path: Path) -> None:
    from fedappeal.views.metrics.client_metrics import ClientMetrics

    now = [100.0]
    registry = ClientMetrics(tmp_path, lambda: now[0])
    assert samples(registry)["fedappeal_client_connected"] == 0
    activity = Activity(tmp_path)
    judged = Judged(0.5, 0.75, "loss", "train", True)
    activity.answered("a", {}, done="joined", seconds=2.0, bytes_up=10, bytes_down=20, server_round=3)
    activity.answered("b", {}, done="sat-out", seconds=1.0, bytes_up=1, bytes_down=2, server_round=7, judged=judged)
    for kind in ("connected", "answered", "answered", "paused", "<evil>"):
        registry.event(Event(kind, "text"))
    registry.alive(20.0)
    assert samples(registry.restricted_registry(["fedappeal_client_runs"])) == {"fedappeal_client_runs": 2}
    found = samples(registry)
    expected = {
        "fedappeal_client_runs": 2,
        "fedappeal_client_answers|joined": 1,
        "fedappeal_client_answers|sat-out": 1,
        "fedappeal_client_work_seconds": 3,
        "fedappeal_client_bytes|up": 11,
        "fedappeal_client_bytes|down": 22,
        "fedappeal_client_round": 7,
        "fedappeal_client_model_figure": 0.5,
        "fedappeal_client_requirement": 0.75,
        "fedappeal_client_requirement_met": 1,
        "fedappeal_client_events_total|answered": 2,
        "fedappeal_client_connected": 1,
        "fedappeal_client_paused": 1,
        "fedappeal_client_last_alive_seconds": 100,
    }
    assert {key: found[key] for key in expected} == expected
    assert not any("evil" in key for key in found)
    registry.event(Event("waiting", "the SuperLink does not answer"))
    assert samples(registry)["fedappeal_client_connected"] == 0


def test_a_heartbeat_is_good_for_as_long_as_it_says(tmp_path: Path) -> None:
    now = [1000.0]
    file = tmp_path / "heartbeat"
    beat = Heartbeat(file, lambda: now[0])
    assert heartbeat_problem(file, 1000.0) == "it has not begun to serve"
    beat.beat(20.0)
    assert heartbeat_problem(file, 1020.0 + GRACE) is None
    assert heartbeat_problem(file, 1030.0 + GRACE) == "no sign of life for 10 s more than expected"
    now[0] = 1010.0
    beat.beat(600.0)  # it works
    assert heartbeat_problem(file, 1600.0) is None
    now[0] = 1100.0
    beat.beat(20.0)  # it waits for the next message
    assert heartbeat_problem(file, 1200.0) == f"no sign of life for {80 - GRACE:.0f} s more than expected"
    file.write_text("[]")
    assert str(heartbeat_problem(file, 0.0)).startswith(f"'{file}' cannot be read")
    with pytest.raises(ConfigError, match=r"heartbeat = '.*' is not allowed: No such file or directory"):
        Heartbeat(tmp_path / "not there" / "heartbeat")
