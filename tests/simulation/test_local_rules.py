"""Simulated runs whose clients train by AdamW, with a learning rate that follows a schedule."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedappeal.protocol.draws import Minibatches
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.forms.batched import Examples
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split

SETTINGS: dict[str, Any] = {
    "model": "logistic",
    "clients": 3,
    "rounds": 4,
    "local-steps": 5,
    "batch-size": 16,
    "solo.steps": 5,
    "local-rule": "adamw",
    "learning-rate": 0.01,
}


def config_of(**settings: Any) -> RunConfig:
    return RunConfig.parse_recorded(
        SETTINGS | {k.replace("__", ".").replace("_", "-"): v for k, v in settings.items()}
    )


def simulated(folder: Path, config: RunConfig, mode: str = "auto") -> RunFolder:
    run = RunPlan.of(config, folder).folder({})
    simulate(config, run, Simulation(mode, threads=1))
    return run


@pytest.mark.parametrize("strategy", ["fedavg", "maxfl", "fedalign"])
def test_strategies_that_leave_the_rule_open_learn_by_adamw(tmp_path: Path, strategy: str) -> None:
    run = simulated(tmp_path / "run", config_of(strategy=strategy, weight_decay=0.01, participation="always"))
    lines = Record(run.path).history
    assert all(line["joined"] > 0 == line["failed"] for line in lines)
    losses = [line["loss"] for line in lines]
    assert losses == sorted(losses, reverse=True)
    assert "learning_rate" not in lines[0]


def test_a_client_alone_follows_torchs_adamw_at_the_rates_of_the_schedule(tmp_path: Path) -> None:
    """FedAvg of one client is that client: a new AdamW each round, at 1/2, 1, 0.55 and 0.1 of the learning rate."""
    schedule = {"lr_schedule": "cosine", "lr_warmup_rounds": 1, "lr_final_share": 0.1}
    own: dict[str, Any] = {"adamw__beta1": 0.8, "adamw__beta2": 0.9, "adamw__eps": 1e-3}
    config = config_of(strategy="fedavg", clients=1, weight_decay=0.05, **schedule, **own)
    run = simulated(tmp_path / "run", config)
    rates = [0.005, 0.01, 0.0055, 0.001]
    assert [line["learning_rate"] for line in Record(run.path).history] == pytest.approx(rates, rel=1e-12)

    task = load_task(config.task_settings())
    data, model = task.load(0).train, task.initial_model(0)
    client = Record(run.path).decisions[0]["client-id"]
    for number, rate in enumerate(rates, start=1):
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.05)
        for batch in map(torch.from_numpy, Minibatches(0, client, number, len(data), 5, 16).rows()):
            optimiser.zero_grad()
            task.loss(model(data.x[batch]), data.y[batch]).backward()
            optimiser.step()
    found = read_safetensors(run.path / MODEL)[0]
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(torch.from_numpy(found[name]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["layers", "vmap"])
@pytest.mark.parametrize(
    "rule",
    [
        {"strategy": "scaffold"},
        {"strategy": "fedavg", "local_rule": "adamw", "adamw__eps": 1e-3, "learning_rate": 0.01},
        {"strategy": "pfedme"},
        {"strategy": "perfedavg"},
        {"strategy": "perfedavg", "perfedavg__maml_order": "first", "local_steps": 0, "local_epochs": 1},
    ],
)
def test_batched_clients_follow_the_schedule_as_sequential_ones_do(
    tmp_path: Path, rule: dict[str, Any], mode: str
) -> None:
    usual = {
        "local_rule": "auto",
        "learning_rate": 0.1,
        "clients": 5,
        "model": "mlp",
        "rounds": 3,
        "dropout_noise": "keyed",
    }
    config = config_of(**usual | {"participation": "always", "lr_schedule": "linear"} | rule)
    runs = [simulated(tmp_path / mode, config, mode) for mode in (mode, "sequential")]
    one, other = (read_safetensors(run.path / MODEL)[0] for run in runs)
    for name, values in one.items():
        torch.testing.assert_close(torch.from_numpy(values), torch.from_numpy(other[name]), rtol=1e-5, atol=1e-5)
    constant = simulated(tmp_path / "constant", config.model_copy(update={"lr_schedule": "constant"}))
    there = read_safetensors(constant.path / MODEL)[0]
    assert any(abs(values - there[name]).max() > 1e-3 for name, values in one.items())


@pytest.mark.parametrize(
    "rule",
    [{"strategy": "pfedme"}, {"local_rule": "adamw"}, {"strategy": "perfedavg", "perfedavg__maml_order": "first"}],
)
def test_by_layers_first_order_rules_build_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    """Their gradients come from the layers' own backward pass: autograd over the layers takes half as long again."""

    def refused(*_: Any) -> None:
        raise AssertionError("a loss for autograd was asked for")

    monkeypatch.setattr(LayeredForm, "loss", refused)
    config = config_of(**{"local_rule": "auto", "strategy": "fedavg", "participation": "always"} | rule, rounds=1)
    run = simulated(tmp_path, config, "layers")
    assert [(line["joined"], line["failed"]) for line in Record(run.path).history] == [(3, 0)]


@pytest.mark.parametrize("rule", ["pfedme", "perfedavg"])
def test_examples_of_a_minibatch_are_gathered_once_for_all_steps_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    gathered: list[torch.Tensor | slice] = []
    take = Examples.take

    def counted(self: Examples, rows: torch.Tensor | slice) -> Split:
        gathered.append(rows)
        return take(self, rows)

    monkeypatch.setattr(Examples, "take", counted)
    simulated(tmp_path, config_of(strategy=rule, local_rule="auto", rounds=1, participation="always"), "layers")
    minibatches = [rows.data_ptr() for rows in gathered if isinstance(rows, torch.Tensor)]
    assert len(minibatches) == len(set(minibatches)) >= 5
