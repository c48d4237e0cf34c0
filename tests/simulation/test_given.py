"""A task and a strategy given as objects: no name has to be importable, and the objects stay as they were."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import Tensor, nn

from fedappeal.core.plugins import PluginSettings
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, TaskSettings
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks.models import seeded
from fedappeal.tasks.task import ClientData, Split, Task
from server.build import Objects
from server.checkpoints import settings_to_resume
from strategies import FedAvg, MaxFL, Strategy
from strategies.rounds.round import Reply, RoundRecord
from strategies.rounds.strategy import rounds_of
from tests.run_models import learned


def own_task(seed: int = 0) -> Task:
    """A task whose class is in no module, on data that is nowhere but here."""

    class Blobs(Task):
        """Two clouds."""

        class Settings(PluginSettings):
            """Its settings."""

            noise: float = Field(0.0)

        input_shape = (3,)
        num_classes = 2

        def __init__(self, tensors: list[tuple[Tensor, Tensor]], settings: TaskSettings) -> None:
            super().__init__(settings)
            self.tensors = tensors

        def initial_model(self, seed: int) -> nn.Module:
            with seeded(seed):
                return nn.Sequential(nn.Linear(3, 2))

        def load(self, client: int) -> ClientData:
            x, y = self.tensors[client]
            return ClientData(Split(x, y), Split(x[:5], y[:5]))

    draws = torch.Generator().manual_seed(1)
    y = torch.arange(20) % 2
    data = [(torch.randn((20, 3), generator=draws) + y.unsqueeze(1), y) for _ in range(4)]
    return Blobs(data, TaskSettings.parse({"clients": 4, "blobs.noise": 0.1, "seed": seed}))


def own_strategy(**settings: Any) -> Strategy:
    """A strategy whose class is in no module, with a setting and with an object that is no setting."""

    class Favour(FedAvg):
        """Weights a client by a function."""

        class Settings(PluginSettings):
            """Its settings."""

            power: float = Field(1.0)

        def __init__(self, favour: Any, **given: Any) -> None:
            super().__init__(**given)
            self.favour = favour
            self.asked: list[str] = []

        def weight(self, reply: Reply) -> float:
            self.asked.append(reply.member.client_id)
            weight: float = self.favour(reply.member.client_id) ** self.settings.power
            return weight

    return Favour(lambda client: 1.0 + int(client[-1]), **settings)


def settings(rounds: int = 4) -> RunConfig:
    given = {"clients": 4, "rounds": rounds, "mandatory-rounds": 2, "local-steps": 3, "solo.steps": 3, "seed": 2}
    return RunConfig.parse(given)


def run(path: Path, config: RunConfig, given: Objects, mode: str = "auto", **how: Any) -> RunFolder:
    folder = RunPlan.of(given.named(config), path, given=given).folder({})
    simulate(config, folder, Simulation(mode, threads=1), task=given.task, strategy=given.strategy, **how)
    return folder


@pytest.mark.parametrize("mode", ["batched", "sequential"])
def test_objects_stand_in_for_names_on_the_server_and_with_the_clients(mode: str, tmp_path: Path) -> None:
    given = Objects(own_task(), own_strategy(power=2.0, clients_per_round=3))
    run(tmp_path / "run", settings(), given, mode)
    record = Record(tmp_path / "run").config["settings"]
    named = {"task": "blobs", "strategy": "favour", "blobs.noise": 0.1, "favour.power": 2.0}
    assert {key: record[key] for key in named} == named
    lines = Record(tmp_path / "run").history
    assert [line["evaluated"] for line in lines] == [4] * 4
    assert [line["joined"] for line in lines[:2]] == [4, 4], "the run's shared settings count, not the template's"
    assert set(read_safetensors(tmp_path / "run" / MODEL)[0]) == {"0.weight", "0.bias"}
    assert not any(event["event"] == "failed" for event in Record(tmp_path / "run").events)


def test_a_template_is_copied_and_gives_the_same_run_again(tmp_path: Path) -> None:
    given = Objects(own_task(), own_strategy(power=2.0))
    models = [learned(run(tmp_path / str(n), settings(), given).path) for n in range(2)]
    assert models[0] == models[1]
    assert vars(given.strategy)["asked"] == []
    assert given.strategy is not None
    assert len(rounds_of(given.strategy).members) == 0
    plain = run(tmp_path / "plain", settings(), Objects(given.task, own_strategy(power=0.0)))
    assert learned(plain.path) != models[0]


def test_one_of_ours_as_an_object_is_the_run_by_name(tmp_path: Path) -> None:
    config = RunConfig.parse(settings().as_config() | {"model": "logistic", "tuning-steps": 2, "adaptation-steps": 0})
    by_name = RunConfig.parse(config.as_config() | {"strategy": "maxfl", "maxfl.server-lr": 0.5})
    simulate(by_name, RunPlan.of(by_name, tmp_path / "name").folder({}), Simulation(threads=1))
    given = Objects(strategy=MaxFL(server_lr=0.5))
    run(tmp_path / "object", config, given)
    models = [read_safetensors(tmp_path / name / MODEL)[0] for name in ("name", "object")]
    assert all((models[0][name] == values).all() for name, values in models[1].items())
    # Where the object says nothing, a general setting that stands in for it counts, as it does by name.
    assert given.strategy_of(config).settings.tuning_steps == 2  # type: ignore[union-attr]
    assert given.strategy is not None
    assert given.strategy.settings.tuning_steps is None


def test_a_setting_beside_the_object_that_has_another_is_one_line(tmp_path: Path) -> None:
    config = RunConfig.parse(settings().as_config() | {"maxfl.server-lr": 0.7})
    line = "maxfl.server-lr = 0.7 is not allowed beside an object that has 0.5"
    with pytest.raises(ConfigError, match=line):
        Objects(strategy=MaxFL(server_lr=0.5)).named(config)
    assert Objects(strategy=MaxFL(server_lr=0.7)).named(config).section("maxfl")["server-lr"] == 0.7


def test_a_run_of_objects_continues_with_the_same_ones(tmp_path: Path) -> None:
    given, config = Objects(own_task(), own_strategy()), settings(6)
    whole = run(tmp_path / "whole", config, given)

    def stop(record: RoundRecord) -> None:
        if record.server_round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "halved", config, given, on_round=stop)
    path = tmp_path / "halved"
    same = {"task": given.task, "strategy": given.strategy}
    with pytest.raises(ConfigError, match=r"task-fingerprint \w+ is not that of the run"):
        simulate(
            settings_to_resume(path), RunFolder.open(path), Simulation(), task=own_task(9), strategy=given.strategy
        )
    simulate(settings_to_resume(path), RunFolder.open(path), Simulation(threads=1), **same)  # type: ignore[arg-type]
    assert learned(path) == learned(whole.path)
