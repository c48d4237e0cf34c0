"""Whole runs with plug-ins of one's own: allowed clients take part, the others decline in one line each."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from client.app import Clients, app_of
from client.roster import Participants
from client.training.task_learner import TaskLearners
from fedappeal.core import plugins
from fedappeal.record.reader import Record
from fedappeal.settings.config import RunConfig, Scalar
from server.build import run_plugins
from server.server_run import run
from strategies.rounds.exchange.roll_call import RollCallError
from tests.grid import Handler, MemoryGrid, time_of
from tests.node import changed, run_config
from tests.plugin_folder import CODE, write_module

MODULE = "whole_plugins"
MORE = '''
from pydantic import Field
from fedappeal.settings.config import Positive
from strategies import StrategySettings

class Slow(FedAvg):
    """FedAvg with a step of its own, and a local rule that shares its settings."""
    class Settings(StrategySettings):
        """Its settings."""
        step: Positive = Field(0.5, description="of the server")
    class LocalRule(SGD):
        """SGD that counts."""
        name = "slow-steps"
        def reply(self, job):
            assert self.settings.step == 0.25
            return super().reply(job)
    def update(self, round):
        step = self.settings.step
        return round.sum.combine(keep=1.0 - step, scale=step / round.sum.weight)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_module(tmp_path, MODULE, CODE + MORE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._distributions.cache_clear()
    yield
    sys.modules.pop(MODULE, None)
    plugins._distributions.cache_clear()


CONFIG = run_config(
    strategy=f"{MODULE}:Slow",
    participation=f"{MODULE}:Willing=0.5,appeal=0.5",
    requirement=f"{MODULE}:Nothing",
    clients=4,
    rounds=2,
    local_steps=2,
    start_timeout=20.0,
    slow__step=0.25,
)


def federate(config: RunConfig, allow: str) -> None:
    app = app_of(Clients(Participants(TaskLearners())))

    def volunteer(number: int) -> Handler:
        own: dict[str, Scalar] = {"partition-id": number, "device": "cpu", "allow": allow}
        context = Context(7, 100 + number, own, RecordDict(), config.as_config())
        return lambda message: app(message, context)

    grid = MemoryGrid({100 + k: volunteer(k) for k in range(config.clients)})
    with time_of(grid):
        run(grid, run_plugins(config))


def test_a_run_of_ones_own_strategy_rule_policy_and_requirement(tmp_path: Path) -> None:
    federate(changed(CONFIG, out=str(tmp_path / "run")), MODULE)
    lines = Record(tmp_path / "run").history
    assert [(line["joined"], line["failed"]) for line in lines] == [(4, 0)] * 2
    assert {line["policy"] for line in Record(tmp_path / "run").policies} == {f"{MODULE}:Willing", "appeal"}
    assert Record(tmp_path / "run").config["settings"]["slow.step"] == 0.25


def test_a_run_of_ones_own_rule_and_task(tmp_path: Path) -> None:
    config = run_config(strategy="fedavg", local_rule=f"{MODULE}:Step", task=f"{MODULE}:Line", clients=3, rounds=2)
    federate(changed(config, out=str(tmp_path / "run"), local_steps=1, solo__steps=1), MODULE)
    assert [line["failed"] for line in Record(tmp_path / "run").history] == [0, 0]


def test_clients_that_do_not_allow_it_decline_in_one_line_each(tmp_path: Path) -> None:
    line = (
        f"strategy = '{MODULE}:Slow' is not allowed: this client's owner has not allowed the package '{MODULE}' "
        f"(--allow {MODULE})"
    )
    with pytest.raises(RollCallError, match="0 of 4 clients answered"):
        federate(changed(CONFIG, out=str(tmp_path / "run")), "another")
    refused = [event["reason"] for event in Record(tmp_path / "run").events if event["event"] == "refused"]
    assert len(refused) == 4
    assert all(line in reason and "\n" not in reason for reason in refused)
