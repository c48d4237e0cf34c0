"""Simulated runs of one's own plug-ins, and which local rules train in batches."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from client.training.sgd import SGD, AdamW
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import choose_mode, simulate
from fedappeal.simulation.options import Simulation
from fedappeal.tasks import load_task
from server.build import run_plugins
from tests.run_models import learned

MODULE = "simulated_plugins"
CODE = '''
"""Plug-ins of a user."""

from typing import ClassVar

from pydantic import Field

from fedappeal.core.policy import Policy, Situation
from fedappeal.core.requirement import Requirement, RequirementKind
from client.training.sgd import SGD
from fedappeal.protocol.keys import Decision
from fedappeal.core.plugins import PluginSettings
from fedappeal.tasks.datasets.digits import Digits
from strategies.fedavg import FedAvg
from fedappeal.core.algorithm import StrategySettings


class Slower(FedAvg):
    """FedAvg that moves a part of the way."""

    class Settings(StrategySettings):
        """Its settings."""

        share: float = Field(0.5, description="of the way")

    def update(self, round):
        return round.sum.combine(keep=1 - self.settings.share, scale=self.settings.share / round.sum.weight)


class EverySecond(Policy):
    """Joins every second round."""

    def decide(self, situation: Situation) -> Decision:
        return Decision.SAT_OUT if situation.server_round % 2 else Decision.JOINED


class SignSGD(SGD):
    """Its `train` is its own, and has no batched form."""

    def train(self, model, problem):
        import torch

        for batch in problem.minibatches():
            gradients = torch.autograd.grad(problem.loss_of(model, batch), list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(gradient.sign(), alpha=0.01)


class Half(RequirementKind):
    """Half of the loss of w_0 on ten classes."""

    def make(self, client):
        return Requirement(1.15)


class MyDigits(Digits):
    """Digits; counts how often it is made."""

    made: ClassVar[list[str]] = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.made.append("")
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A module of a user's, and a run that names all of its plug-ins."""
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield {
        **{"strategy": f"{MODULE}:Slower", "slower.share": 0.25, "task": f"{MODULE}:MyDigits", "model": "logistic"},
        **{"participation": f"{MODULE}:EverySecond=0.5,always=0.5", "local-rule": f"{MODULE}:SignSGD"},
        **{"requirement": f"{MODULE}:Half", "clients": 6, "rounds": 2, "local-steps": 4},
    }
    sys.modules.pop(MODULE, None)


def simulated(folder: Path, mode: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    config = RunConfig.parse(settings)
    simulate(config, RunPlan.of(config, folder).folder({}), Simulation(mode, threads=1))
    return [{k: v for k, v in line.items() if k != "seconds"} for line in Record(folder).history]


def test_a_run_of_own_plugins_and_a_mixture_of_policies(own: dict[str, Any], tmp_path: Path) -> None:
    lines = simulated(tmp_path / "run", "auto", own)
    always = sum(line["policy"] == "always" for line in Record(tmp_path / "run").policies)
    assert 0 < always < 6
    assert [line["joined"] for line in lines] == [always, 6]
    assert lines[1]["loss"] < lines[0]["loss"]
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert recorded["slower.share"] == 0.25


def test_a_rule_that_trains_in_its_own_way_is_not_batched(own: dict[str, Any], tmp_path: Path) -> None:
    reason = "local rule 'sign-sgd' has no batched form"
    config = RunConfig.parse(own)
    assert choose_mode(run_plugins(config), Simulation(), load_task(config.task_settings())) == ("sequential", reason)
    for mode in ("auto", "sequential"):
        simulated(tmp_path / mode, mode, own)
    assert learned(tmp_path / "auto") == learned(tmp_path / "sequential")

    class Renamed(SGD):
        """Trains as SGD does."""

    class Checked(SGD):
        """Says that its form is the same."""

        batched = True

        def train(self, *arguments: Any) -> None:
            super().train(*arguments)

    assert (SGD.batched, Renamed.batched, Checked.batched) == (True, True, True)

    class Mixing(AdamW):
        """Trains in a way of its own, which may mix the elements of a parameter."""

        batched = True

        def train(self, *arguments: Any) -> None:
            super().train(*arguments)

    assert (AdamW.stacks, Mixing.stacks) == (True, False)


def test_the_task_is_made_once_for_all_virtual_clients(own: dict[str, Any], tmp_path: Path) -> None:
    counts = []
    for clients in (6, 12):
        simulated(tmp_path / str(clients), "auto", own | {"clients": clients})
        counts.append(len(sys.modules[MODULE].MyDigits.made))
        sys.modules[MODULE].MyDigits.made.clear()
    assert counts[0] == counts[1]


def test_the_packages_that_a_run_names(own: dict[str, Any]) -> None:
    assert run_plugins(RunConfig()).packages() == []
    assert run_plugins(RunConfig.parse(own)).packages() == [MODULE]
    assert run_plugins(
        RunConfig.parse({"task": "mine.deep.tasks:Words", "local-rule": f"{MODULE}:SignSGD"})
    ).packages() == [
        "mine",
        MODULE,
    ]


def test_the_package_of_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("words", "mine.deep.tasks:Words", "fedappeal.tasks")
    monkeypatch.setattr("fedappeal.core.plugins.entry_points", lambda group: [entry] if group == entry.group else [])
    assert run_plugins(RunConfig.parse({"task": "words"})).packages() == ["mine"]
