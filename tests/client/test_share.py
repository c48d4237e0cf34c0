"""A part of the model travels: the rest stays with each client, and counts in what it measures."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client.training.models import arrays_of, load_arrays
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Arrays
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets.digits import Digits
from fedappeal.tasks.models import seeded
from fedappeal.tasks.share import parts_of
from tests.node import Node, changed, run_config
from tests.normed import Normed

CONFIG = run_config(
    task="tests.normed:Normed", clients=3, strategy="fedavg", local_steps=4, batch_size=16, share="!1.*", rounds=3
)
BODY_AND_HEAD = ("0.1.weight", "0.1.bias", "3.weight", "3.bias")
NORM = ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")


def model() -> nn.Module:
    return load_task(CONFIG.task_settings()).initial_model(0)


def test_parts_by_hand() -> None:
    parts = parts_of(model(), "!1.*")
    assert (parts.shared, parts.personal, parts.fixed) == (BODY_AND_HEAD, NORM, ())
    assert parts.personal_trained == NORM[:2]
    assert parts_of(model(), "0.*,1.*,!*.bias").shared == ("0.1.weight", "1.weight", *NORM[2:])
    frozen = model()
    frozen[0].requires_grad_(False)  # type: ignore[index]
    parts = parts_of(frozen, "trainable")
    assert parts.shared == ("1.weight", "1.bias", "3.weight", "3.bias")
    assert (parts.personal, parts.personal_trained, parts.fixed) == (NORM[2:], (), BODY_AND_HEAD[:2])
    assert parts_of(frozen, "all").shared == tuple(frozen.state_dict())


@pytest.mark.parametrize("share", ["2.*", "0.*,", "!*", "0.1.Weight"])
def test_a_pattern_without_a_match_and_nothing_at_all_are_refused(share: str) -> None:
    with pytest.raises(ConfigError, match=r"^share = '.*' is not allowed: no array of the model [^\n]*$"):
        parts_of(model(), share)


class Tied(nn.Module):
    """Words in, words out, with one matrix for both."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.words.weight


def test_a_tied_parameter_travels_once_and_stays_tied() -> None:
    network = Tied()
    parts = parts_of(network, "all")
    assert parts.shared == ("words.weight", "out.bias")
    assert parts_of(network, "trainable").shared == parts.shared
    assert (parts.personal, parts.fixed) == ((), ())
    arrays = arrays_of(network)
    assert tuple(arrays) == parts.shared
    load_arrays(network, {name: array + 1 for name, array in arrays.items()})
    assert network.out.weight is network.words.weight
    assert np.array_equal(network.out.weight.detach().numpy(), arrays["words.weight"] + 1)
    with pytest.raises(RuntimeError, match=r"these arrays are not the model's, or missing: words.weight"):
        load_arrays(network, {"out.bias": arrays["out.bias"]})


# -- one client ------------------------------------------------------------------------------------------


def trained(start: Arrays, node: Node, server_round: int) -> dict[str, np.ndarray]:
    """What plain PyTorch makes of a model with the node's minibatches."""
    task = load_task(CONFIG.task_settings())
    network, data = model(), task.load(1).train
    load_arrays(network, start)
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=CONFIG.learning_rate)
    batches = np.asarray(
        Minibatches(0, "client-0001", server_round, len(data), CONFIG.local_steps, CONFIG.batch_size)
    )
    for rows in torch.from_numpy(batches):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(data.x[rows]), data.y[rows]).backward()  # type: ignore[index]
        optimiser.step()
    return arrays_of(network)


def sent_back(node: Node, arrays: Arrays, server_round: int) -> dict[str, np.ndarray]:
    content = node("train", arrays, mandatory=1, server_round=server_round)
    return dict(node.layout.unpack(content.array_records[keys.ARRAYS]))


def test_the_norm_stays_with_the_client_from_round_to_round(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path, allow="tests")
    first = sent_back(node, node.initial, 1)
    expected = trained(arrays_of(model()), node, 1)
    assert tuple(first) == tuple(sorted(BODY_AND_HEAD))
    for name in first:
        np.testing.assert_allclose(first[name], expected[name], rtol=1e-5, atol=1e-7)
    node = node.restarted()
    zeros = {name: np.zeros_like(a) for name, a in node.initial.items()}
    start = {**{name: expected[name] for name in NORM}, **zeros}
    second, expected = sent_back(node, zeros, 2), trained(start, node, 2)
    for name in second:
        np.testing.assert_allclose(second[name], expected[name], rtol=1e-5, atol=1e-7)
    measured = node.metrics("evaluate", second, server_round=2)
    network, test = model(), load_task(CONFIG.task_settings()).load(1).test
    load_arrays(network, expected)
    loss = nn.functional.cross_entropy(network.eval()(test.x), test.y)  # type: ignore[arg-type]
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_round_that_is_run_again_starts_from_what_was_there_before_it(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path, allow="tests", limits="off")  # several models under one round number
    one = sent_back(node, node.initial, 1)
    two = sent_back(node, one, 2)
    assert not np.array_equal(two["3.weight"], sent_back(node, one, 3)["3.weight"])
    again = node.restarted()
    third = sent_back(again, two, 3)
    np.testing.assert_array_equal(third["3.weight"], sent_back(again, two, 3)["3.weight"])


def test_a_fixed_part_is_neither_sent_nor_stored(tmp_path: Path) -> None:
    config = changed(CONFIG, task="tests.client.test_share:Frozen", share="auto")
    node = Node(config, tmp_path, allow="tests")
    node("query")
    assert tuple(sent_back(node, node.initial, 1)) == ("3.bias", "3.weight")
    stored = {name for path in tmp_path.glob("*.safetensors") for name in read_safetensors(path)[0]}
    assert stored == {"3.bias", "3.weight", *NORM[2:]}


class Frozen(Normed):
    """A body that is given, and a head that is trained."""

    name = "frozen"
    share = "trainable"

    def initial_model(self, seed: int) -> nn.Module:
        network = super().initial_model(seed)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.startswith("3."))
        return network


# -- a run -----------------------------------------------------------------------------------------------


def run(tmp_path: Path, config: RunConfig) -> Path:
    simulate(config, RunPlan.of(config, tmp_path).folder({}), Simulation(threads=1))
    return tmp_path


def test_a_run_leaves_what_travels_and_equals_a_loop_by_hand(tmp_path: Path) -> None:
    config = changed(CONFIG, participation="always", requirement="fixed")
    task, shared = load_task(config.task_settings()), BODY_AND_HEAD
    clients = [copy.deepcopy(model()) for _ in range(3)]
    data = [task.load(k) for k in range(3)]
    for server_round in (1, 2, 3):
        for k, network in enumerate(clients):
            optimiser = torch.optim.SGD(network.train().parameters(), lr=config.learning_rate)
            n = len(data[k].train)
            batches = np.asarray(
                Minibatches(0, f"client-{k:04d}", server_round, n, config.local_steps, config.batch_size)
            )
            for rows in torch.from_numpy(batches):
                batch = data[k].train.take(rows)
                optimiser.zero_grad()
                task.loss(network(batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        weights = [len(each.train) / sum(len(d.train) for d in data) for each in data]
        mean = {n: sum(w * c.state_dict()[n] for w, c in zip(weights, clients, strict=True)) for n in shared}
        for network in clients:
            network.load_state_dict(mean, strict=False)
    folder = run(tmp_path / "run", config)
    found, _ = read_safetensors(folder / MODEL)
    assert set(found) == set(shared)
    for name in shared:
        np.testing.assert_allclose(found[name], mean[name].numpy(), rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]
    losses = [task.loss(c.eval()(d.test.x), d.test.y).item() for c, d in zip(clients, data, strict=True)]
    assert Record(folder).history[-1]["loss"] == pytest.approx(sum(losses) / 3, rel=1e-4)


def test_a_head_alone_needs_few_bytes(tmp_path: Path) -> None:
    whole = Record(run(tmp_path / "whole", changed(CONFIG, share="all"))).history[-1]
    head = Record(run(tmp_path / "head", changed(CONFIG, share="3.*"))).history[-1]
    assert head["bytes_up"] < 0.5 * whole["bytes_up"]


@pytest.mark.parametrize("strategy", ["scaffold"])
def test_a_rule_that_needs_every_trained_parameter_refuses_at_the_start(strategy: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^share = '!1\.\*' is not allowed with local-rule = 'scaffold': all trained"
    ):
        run(tmp_path, changed(CONFIG, strategy=strategy))
    assert not (tmp_path / MODEL).exists()


class Adapted(Digits):
    """A frozen body beside a head that is trained."""

    name = "adapted"
    share = "trainable"

    def initial_model(self, seed: int) -> nn.Module:
        with seeded(seed):
            network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 10))
        network[1].requires_grad_(False)
        return network


def test_side_by_side_a_fixed_part_is_the_tasks_own(tmp_path: Path) -> None:
    config = changed(CONFIG, task="tests.client.test_share:Adapted", share="auto", participation="always")
    models = []
    for mode in ("vmap", "sequential"):
        simulate(config, RunPlan.of(config, tmp_path / mode).folder({}), Simulation(mode, threads=1))
        models.append(read_safetensors(tmp_path / mode / MODEL)[0])
    assert set(models[0]) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    for name, array in models[0].items():
        np.testing.assert_allclose(array, models[1][name], rtol=1e-4, atol=1e-6)


def test_clipping_is_possible_where_counters_stay(tmp_path: Path) -> None:
    assert (run(tmp_path, changed(CONFIG, clipping_norm=1.0)) / MODEL).exists()
