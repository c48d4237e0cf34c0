"""SCAFFOLD's client: option II against the gradients that were used, and what it remembers from round to round."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from client.state.store import ContextStore, DiskStore
from client.training.models import arrays_of
from fedappeal.core.local_rule import Store
from fedappeal.protocol import keys
from fedappeal.protocol.packing import FLAT, Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks.datasets.digits import Digits
from fedappeal.tasks.models import seeded
from strategies import Scaffold
from strategies.scaffold import CONTROL, CONTROL_DELTA, CONTROL_ROUND, control_delta
from tests import node as one_client
from tests.client.training.descents import BATCHES, SETTINGS, X, Y, after, by_autograd, corrections, network, torchs
from tests.client.training.descents import training as work
from tests.node import changed, run_config
from tests.problems import local_problem


class Normed(Digits):
    """The digits with a model that has buffers: running statistics (float32) and a counter (int64)."""

    def initial_model(self, seed: int) -> nn.Module:
        with seeded(seed):
            return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


CONFIG = run_config(
    task=f"{__name__}:Normed", strategy="scaffold", clients=4, solo__steps=2, batch_size=16, local_steps=4
)
PLAIN = changed(CONFIG, strategy="fedavg")
STEPS, RATE = CONFIG.local_steps, CONFIG.learning_rate
MODEL = Normed(CONFIG.task_settings()).initial_model(0)
INITIAL = arrays_of(MODEL)
LAYOUT = Layout.of(INITIAL)
TRAINABLE = [name for name, _ in MODEL.named_parameters()]
Arrays = dict[str, NDArray[np.generic]]


class Node(one_client.Node):
    """One client; its state is on disk, or in its context."""

    def __init__(self, folder: Path | None = None, config: RunConfig = CONFIG) -> None:
        super().__init__(config, folder, allow="tests", limits="off")
        self.store: Store = DiskStore(folder) if folder is not None else ContextStore(self.context.state)

    def train(
        self, server_round: int, control: Arrays | None = None, arrays: Arrays = INITIAL, **told: Scalar | None
    ) -> RecordDict:
        told = {keys.MANDATORY: 1, **told}
        if "control_round" in told:
            told[f"scaffold.{CONTROL_ROUND}"] = told.pop("control_round")
        told = {key.replace("_", "-"): value for key, value in told.items()} | {keys.SERVER_ROUND: server_round}
        return self("train", arrays, told, {CONTROL: LAYOUT.pack(zeros() if control is None else control)})


def plain(server_round: int) -> ArrayRecord:
    """What the client sends in a run of FedAvg."""
    content = Node(config=PLAIN)("train", server_round=server_round, mandatory=1)
    return content.array_records[keys.ARRAYS]


def zeros() -> Arrays:
    return {name: np.zeros_like(array) for name, array in INITIAL.items()}


def noise(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return zeros() | {n: rng.normal(0, 0.1, INITIAL[n].shape).astype(np.float32) for n in TRAINABLE}


def unpacked(content: RecordDict, name: str) -> Arrays:
    return LAYOUT.unpack(content.array_records[name])


def stored(node: Node, which: str) -> Arrays:
    record = node.store.read("control-k")
    assert record is not None
    return {name: record.arrays[f"{which}/{name}"] for name in TRAINABLE}


def same(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in TRAINABLE)


def test_option_two_is_the_mean_of_the_gradients_that_were_used() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randint(0, 3, (12,))
    names = [name for name, _ in model.named_parameters()]
    own = {n: torch.randn_like(p).numpy() for n, p in model.named_parameters()}
    control = {n: torch.randn_like(p).numpy() for n, p in model.named_parameters()}
    gradients: list[list[Tensor]] = []

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(logits, target)
        gradients.append(list(torch.autograd.grad(value, list(model.parameters()), retain_graph=True)))
        return value

    sent = arrays_of(model)
    batches = np.random.default_rng(3).integers(0, 12, size=(7, 4))
    settings = LocalTrainingSettings(learning_rate=0.2, batch_size=4, local_steps=7)
    rule = Scaffold.LocalRule(correction=[torch.from_numpy(control[n] - own[n]) for n in names])
    rule.train(model, local_problem(loss, x, y, batches, settings))
    delta = control_delta(sent, arrays_of(model), control, 7, 0.2)
    for i, name in enumerate(names):
        mean = torch.stack([g[i] for g in gradients]).mean(dim=0).numpy()
        np.testing.assert_allclose(own[name] + delta[name], mean, rtol=1e-11, atol=1e-13)


def test_option_two_by_hand() -> None:
    # (x - y) / (K eta) - c = (3 - 1) / (4 * 0.25) - 0.5
    delta = control_delta({"w": np.array([3.0])}, {"w": np.array([1.0])}, {"w": np.array([0.5])}, 4, 0.25)
    assert delta["w"].tolist() == [1.5]


def test_the_first_round_starts_from_zero_control_variates(tmp_path: Path) -> None:
    node = Node(tmp_path)
    content = node.train(1)
    assert content.array_records[keys.ARRAYS] == plain(1)  # c = c_i = 0: FedAvg's local model
    local, change = unpacked(content, keys.ARRAYS), unpacked(content, CONTROL_DELTA)
    for name in TRAINABLE:  # c_i^+ - 0 = (x - y) / (K eta): not the weights, not zero
        moved = INITIAL[name].astype(np.float64) - local[name].astype(np.float64)
        np.testing.assert_allclose(change[name], moved / (STEPS * RATE), rtol=1e-5, atol=1e-6)
        assert np.abs(change[name]).max() > 1e-3
    assert content.metric_records[keys.METRICS][keys.DECISION] == 1


def test_equal_control_variates_are_no_correction(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.train(1)
    equal = zeros() | stored(node, "after")
    assert node.train(2, equal, control_round=1).array_records[keys.ARRAYS] == plain(2)
    assert node.train(2, noise(1), control_round=1).array_records[keys.ARRAYS] != plain(2)


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_same_train_twice_is_the_same_reply(tmp_path: Path, on_disk: bool) -> None:
    node = Node(tmp_path if on_disk else None)
    node.train(1, noise(1))
    first = node.train(2, noise(2), control_round=1)
    after = stored(node, "after")
    again = node.train(2, noise(2), control_round=1)
    if on_disk:
        node = Node(tmp_path)  # a restart: only the folder is left
    last = node.train(2, noise(2), control_round=1)
    for other in (again, last):
        assert other.array_records[keys.ARRAYS] == first.array_records[keys.ARRAYS]
        assert other.array_records[CONTROL_DELTA] == first.array_records[CONTROL_DELTA]
    assert same(stored(node, "after"), after)


def test_a_round_starts_from_the_control_variate_that_the_server_added(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.train(1)
    after_one = stored(node, "after")
    node.train(2, noise(2), control_round=1)
    assert same(stored(node, "before"), after_one)
    after_two = stored(node, "after")
    assert not same(after_two, after_one)
    node.train(3, noise(3), control_round=1)  # round 2 was surplus or late: it does not count
    assert same(stored(node, "before"), after_one)
    node.train(3, noise(3), control_round=1)
    after_three = stored(node, "after")
    node.train(5, noise(5), control_round=3)
    assert same(stored(node, "before"), after_three)
    node.train(6, noise(6), control_round=0)  # the server knows nothing of this client
    assert same(stored(node, "before"), zeros())


def test_a_server_that_does_not_say_has_added_all_earlier_rounds(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.train(1)
    after_one = stored(node, "after")
    for _ in range(2):
        node.train(2, noise(2))
        assert same(stored(node, "before"), after_one)
    after_two = stored(node, "after")
    node.train(4, noise(4))
    assert same(stored(node, "before"), after_two)
    node.train(1)
    assert same(stored(node, "before"), zeros())


def test_what_is_sent_is_what_is_remembered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.train(1, noise(1))
    change = unpacked(node.train(2, noise(2), control_round=1), CONTROL_DELTA)
    before, after = stored(node, "before"), stored(node, "after")
    assert all(np.array_equal(before[n] + change[n], after[n]) for n in TRAINABLE)  # type: ignore[operator]


def test_only_trainable_parameters_have_a_control_variate(tmp_path: Path) -> None:
    sent = {n: np.full_like(a, 3) for n, a in INITIAL.items() if n not in TRAINABLE}
    content = Node(tmp_path).train(1, noise(1) | sent)
    local, change = unpacked(content, keys.ARRAYS), unpacked(content, CONTROL_DELTA)
    assert set(sent) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for name in sent:
        assert not change[name].any()
        assert not np.array_equal(local[name], INITIAL[name])
    packed = content.array_records[CONTROL_DELTA]
    assert {n: a.dtype for n, a in packed.items()} == {FLAT: "float32", f"{FLAT}-int64": "int64"}


def test_each_run_has_its_own_and_sitting_out_changes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, changed(CONFIG, requirement="fixed", fixed__loss=-1.0))
    node.train(1, noise(1))
    after = stored(node, "after")
    node.train(2, noise(2), run_key="other")
    assert node.train(2, noise(2), mandatory=0).metric_records[keys.METRICS][keys.DECISION] == 0
    assert same(stored(node, "after"), after)
    assert isinstance(node.store, DiskStore)
    assert {"control-k", "control-other"} <= set(node.store.names())


def test_epochs_count_as_the_steps_that_they_are(tmp_path: Path) -> None:
    one, other = Node(tmp_path / "one"), Node(tmp_path / "other")
    whole = one.train(1, local_steps=0, local_epochs=2)
    examples = int(whole.metric_records[keys.METRICS][keys.NUM_EXAMPLES])  # type: ignore[arg-type]
    same_steps = other.train(1, local_steps=2 * -(-examples // 16))
    assert whole.array_records[CONTROL_DELTA] == same_steps.array_records[CONTROL_DELTA]


def test_what_cannot_be_trained_is_one_line(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with pytest.raises(ConfigError, match=r"momentum = 0\.9 is not allowed with local-rule = 'scaffold': 0"):
        node.train(1, momentum=0.9)
    with pytest.raises(ConfigError, match="a training of 0 gradients is not allowed"):
        node.train(1, local_steps=0)
    with pytest.raises(ValueError, match="array 'flat'"):
        node("train", records={CONTROL: ArrayRecord()}, mandatory=1)
    with pytest.raises(ValueError, match="message has no ArrayRecord 'control'"):
        node("train", mandatory=1)
    assert node.store.read("control-k") is None


# -- the rule itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_correction_is_added_to_every_gradient(settings: dict[str, float]) -> None:
    got = after(Scaffold.LocalRule(correction=corrections(network())), **settings)
    expected = by_autograd(0.0, correction=True, **torchs(settings))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


def test_without_a_correction_for_each_parameter_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 tensors, the model 4 parameters"):
        after(Scaffold.LocalRule())


def test_a_frozen_parameter_stays_and_takes_no_correction() -> None:
    model = network()
    frozen = next(iter(model.parameters())).requires_grad_(False)
    before = frozen.clone()
    rule = Scaffold.LocalRule(correction=corrections(model)[1:])
    rule.train(model, local_problem(nn.functional.cross_entropy, X, Y, BATCHES, work()))
    assert torch.equal(frozen, before)
