"""Behaviours in simulated runs: availability, a trace of the user's, devices under a virtual clock."""

import math
from pathlib import Path
from typing import Any

import pytest

from client.participation.availability import Markov
from client.participation.behaviour import Device, Mixture
from fedappeal.protocol.draws import generator
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.engine import VirtualClock, simulate
from fedappeal.simulation.options import Simulation
from strategies.rounds.round import RoundRecord

CLIENTS = [f"client-{k:04d}" for k in range(6)]


def run(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run digits with six clients, and return the history."""
    given = {"task": "digits", "strategy": "fedavg", "model": "logistic", "clients": 6, "rounds": 4, "seed": 3}
    given |= {
        "requirement": "fixed",
        "local-steps": 4,
        "partition": "iid",
        "evaluate-every": 4,
        "mandatory-rounds": 0,
    }
    config = RunConfig.parse(
        {**given, **{key.replace("__", ".").replace("_", "-"): v for key, v in settings.items()}}
    )
    made = RunPlan.of(config, folder).folder({})
    simulate(config, made, Simulation("sequential"))
    return Record(made.path).history


def test_a_run_whose_clients_come_and_go(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", participation="always+markov", markov__goes=0.4, markov__returns=0.4)
    chain = Markov(Markov.Settings(goes=0.4, returns=0.4))
    expected = [sum(chain.available(3, client, t) for client in CLIENTS) for t in range(1, 5)]
    assert [line["joined"] for line in lines] == expected
    assert [line["sat_out"] for line in lines] == [6 - joined for joined in expected]
    assert lines[-1]["evaluated"] == 6
    assert "virtual_seconds" not in lines[0]


def test_a_trace_of_the_user(tmp_path: Path) -> None:
    trace = tmp_path / "a trace.csv"
    trace.write_text("*,1,2\nclient-0003,2,4\n")
    lines = run(tmp_path / "run", participation="always+trace", trace__file=str(trace))
    assert [line["joined"] for line in lines] == [5, 6, 1, 1]
    first = Record(tmp_path / "run").decisions[:6]
    assert [line["client-id"] for line in first if line["decision"] == "sat-out"] == ["client-0003"]
    trace.write_text("*,1\n")
    with pytest.raises(ConfigError, match="line 1: expected client-id"):
        run(tmp_path / "other", participation="always+trace", trace__file=str(trace))


def test_a_round_takes_as_long_as_its_slowest_joiner(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("client-0001,1,4\nclient-0004,2,3\n")
    lines = run(
        tmp_path / "run", participation="always+trace+device", trace__file=str(trace), device__steps=2.0,
        device__spread=0.7, device__bandwidth=1300.0,
    )  # fmt: skip
    # Four steps; a logistic model of 64 * 10 + 10 float32 down and up takes 2 * 2600 / 1300 = 4 seconds.
    took = {
        k: 4 / (2.0 * math.exp(0.7 * generator(3, "device", client=CLIENTS[k]).standard_normal())) + 4.0
        for k in (1, 4)
    }
    both = max(took.values())
    assert [line["virtual_seconds"] for line in lines] == pytest.approx([took[1], both, both, took[1]])
    assert took[1] != took[4]


def test_a_round_does_not_wait_for_surplus_clients() -> None:
    clock = VirtualClock(
        Mixture.parse("always+device=1.0,always=0.0"),
        3,
        Device(),
        LocalTrainingSettings(learning_rate=0.1, batch_size=32, local_steps=4),
        0,
    )
    times = {client: clock.device.seconds(3, client, 4, 0) for client in CLIENTS}
    slow, *others = sorted(CLIENTS, key=lambda client: -times[client])
    record = RoundRecord(1, decisions={slow: "surplus", others[0]: "refused", others[1]: "joined"})
    assert clock.seconds(record) == times[others[0]]
    record.decisions[slow] = "joined"
    assert clock.seconds(record) == times[slow]
    assert clock.seconds(RoundRecord(1, decisions={slow: "sat-out", others[0]: "failed"})) == 0.0


def test_devices_of_one_speed() -> None:
    alike = Device(Device.Settings(steps=5.0, spread=0.0))
    assert [alike.seconds(0, client, 30, 10**9) for client in CLIENTS] == [6.0] * 6


def test_only_joiners_with_a_device_count(tmp_path: Path) -> None:
    lines = run(
        tmp_path / "run", participation="always+bernoulli+device", bernoulli__available=0.0, on_empty_round="keep"
    )
    assert [line["virtual_seconds"] for line in lines] == [0.0] * 4
