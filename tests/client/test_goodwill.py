"""Goodwill: rounds in which a client joins on request although the model does not meet its requirement."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from client.settings import NodeSettings
from client.state.activity import Activity, Judged
from client.state.memory import RunMemory
from client.state.store import DiskStore
from client.training.models import arrays_of
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError
from fedappeal.tasks import load_task
from tests.node import RUN_KEY, Node, changed, metrics_of, run_config

CONFIG = run_config(clients=4, solo__steps=10, local_steps=2, goodwill=2)
INITIAL = arrays_of(load_task(CONFIG.task_settings()).initial_model(0))
LAYOUT = Layout.of(INITIAL)


def model(number: int) -> ArrayRecord:
    """A model that meets no requirement, unlike that of any other number."""
    return LAYOUT.pack({name: (5 + number) * np.ones_like(array) for name, array in INITIAL.items()})


def decision(node: Node, number: int, which: int | None = None, mandatory: int = 1) -> object:
    sent = model(number if which is None else which)
    return metrics_of(node("train", sent, server_round=number, mandatory=mandatory))[keys.DECISION]


def test_it_is_spent_a_round_at_a_time_and_survives_restarts(tmp_path: Path) -> None:
    for number, joins in ((1, 1), (2, 1), (3, 0), (4, 0)):
        node = Node(CONFIG, tmp_path)  # as after a restart
        if number == 1:
            node("query")
        assert decision(node, number) == joins
    assert RunMemory(DiskStore(tmp_path), RUN_KEY).goodwill_spent == 2


def test_a_round_that_is_repeated_is_paid_for_once_and_another_model_again(tmp_path: Path) -> None:
    node = Node(
        changed(CONFIG, goodwill=3), tmp_path, limits="off"
    )  # another model in a round is a limit's to refuse
    node("query")
    assert [decision(node, 1), decision(node, 1), decision(node, 1, which=7)] == [1, 1, 1]
    assert RunMemory(DiskStore(tmp_path), RUN_KEY).goodwill_spent == 2
    assert [decision(node, 2), decision(node, 3), decision(node, 2)] == [1, 0, 1]


def test_a_free_round_and_a_model_that_meets_the_requirement_cost_nothing(tmp_path: Path) -> None:
    node = Node(changed(CONFIG, requirement="fixed", fixed__loss=100.0), tmp_path)
    node("query")
    for number in range(1, 5):
        assert metrics_of(node("train", server_round=number, mandatory=1))[keys.DECISION] == 1
    strict = Node(changed(CONFIG, requirement="fixed", fixed__loss=0.0), tmp_path)
    strict("query")
    assert decision(strict, 9, mandatory=0) == 0
    assert RunMemory(DiskStore(tmp_path), RUN_KEY).goodwill_spent == 0


def test_policies_that_know_no_mandatory_rounds_never_pay(tmp_path: Path) -> None:
    node = Node(changed(CONFIG, participation="always"), tmp_path)
    node("query")
    assert [decision(node, number) for number in range(1, 5)] == [1] * 4
    assert RunMemory(DiskStore(tmp_path), RUN_KEY).goodwill_spent == 0


def test_the_owner_goes_before_the_run_and_none_is_refusing(tmp_path: Path) -> None:
    owner = Node(CONFIG, tmp_path / "own", goodwill=1)
    none = Node(CONFIG, tmp_path / "none", goodwill=0)
    for node in (owner, none):
        node("query")
    assert [decision(owner, 1), decision(owner, 2), decision(none, 1)] == [1, 0, 0]
    endless = Node(changed(CONFIG, goodwill=-1), tmp_path / "any")
    endless("query")
    assert [decision(endless, number) for number in range(1, 6)] == [1] * 5
    with pytest.raises(ConfigError, match="goodwill = 3 is not allowed together with refuse-mandatory: 0"):
        NodeSettings.parse({"refuse-mandatory": True, "goodwill": 3})


def test_a_second_run_begins_with_all_of_it(tmp_path: Path) -> None:
    memory = RunMemory(DiskStore(tmp_path), "first")
    memory.pay(1, "a" * 32)
    assert not memory.accepts(2, "b" * 32, 1)
    assert memory.accepts(1, "a" * 32, 1)
    assert RunMemory(DiskStore(tmp_path), "second").accepts(2, "b" * 32, 1)


def test_the_owner_reads_what_was_spent_and_since_when_the_model_serves(tmp_path: Path) -> None:
    activity = Activity(tmp_path)
    for number, met in ((17, True), (18, False), (19, True), (20, True)):
        judged = Judged(0.4, 0.5, "loss", "held-out", met, spent=12, goodwill=40)
        activity.answered(RUN_KEY, {"strategy": "maxfl", "task": "digits"}, server_round=number, judged=judged)
        test = Judged(0.6, 0.5, "loss", "test", False)
        activity.answered(RUN_KEY, {"strategy": "maxfl", "task": "digits"}, server_round=number, judged=test)
    lines = activity.runs()[RUN_KEY].lines()
    assert lines[-1] == "goodwill: 12 of 40 rounds spent; the model serves you since round 19"
