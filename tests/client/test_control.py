"""SCAFFOLD's client: option II against the gradients that were used, and what it remembers from round to round."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

import client.app
import client.registry
from client.control import control_delta, controlled
from client.descent import scaffold
from client.models import arrays_of
from client.state import ContextStore, DiskStore, Store
from client.training import TRAININGS
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar, TaskSettings
from fedappeal.protocol.packing import FLAT, Layout
from fedappeal.tasks.digits import SOURCE
from fedappeal.tasks.models import seeded
from fedappeal.tasks.partitioned import PartitionedTask

pytestmark = pytest.mark.usefixtures("fresh")


class Normed(PartitionedTask):
    """The digits with a model that has buffers: running statistics (float32) and a counter (int64)."""

    def initial_model(self, seed: int) -> nn.Module:
        with seeded(seed):
            return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def normed(settings: TaskSettings, data_dir: Path | None) -> Normed:
    return Normed(SOURCE, settings, data_dir)


CONFIG = RunConfig(task=f"{__name__}:normed", clients=4, warmup_steps=2, batch_size=16, local_steps=4)
STEPS, RATE = CONFIG.local_steps, CONFIG.learning_rate
MODEL = normed(CONFIG.task_settings(), None).initial_model(0)
INITIAL = arrays_of(MODEL)
LAYOUT = Layout.of(INITIAL)
TRAINABLE = [name for name, _ in MODEL.named_parameters()]
Arrays = dict[str, NDArray[np.generic]]


class Node:
    """One client; its state is on disk, or in its context."""

    def __init__(self, folder: Path | None = None, config: RunConfig = CONFIG) -> None:
        settings: dict[str, Scalar] = {"partition-id": 1, "device": "cpu"}
        if folder is not None:
            settings["state-dir"] = str(folder)
        self.context = Context(7, 3, dict(settings), RecordDict(), config.as_config())
        self.store: Store = DiskStore(folder) if folder is not None else ContextStore(self.context.state)

    def __call__(
        self, server_round: int, control: Arrays | None = None, arrays: Arrays = INITIAL, **told: Scalar
    ) -> RecordDict:
        plain: dict[str, Scalar] = {keys.RUN_KEY: "k", keys.LOCAL_RULE: "scaffold", keys.MANDATORY: 1}
        values = plain | {keys.SERVER_ROUND: server_round} | {k.replace("_", "-"): v for k, v in told.items()}
        content = RecordDict({keys.ARRAYS: LAYOUT.pack(arrays), keys.CONFIG: ConfigRecord(values)})
        content[keys.CONTROL] = LAYOUT.pack(zeros() if control is None else control)
        return client.app.app(Message(content, 3, "train"), self.context).content


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
    work = LocalWork(learning_rate=0.2, batch_size=4, local_steps=7)
    scaffold(model, loss, x, y, batches, work, [torch.from_numpy(control[n] - own[n]) for n in names])
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
    content = node(1)
    plain = node(1, local_rule="sgd")
    assert content.array_records[keys.ARRAYS] == plain.array_records[keys.ARRAYS]  # c = c_i = 0: FedAvg's local model
    local, change = unpacked(content, keys.ARRAYS), unpacked(content, keys.CONTROL_DELTA)
    for name in TRAINABLE:  # c_i^+ - 0 = (x - y) / (K eta): not the weights, not zero
        moved = INITIAL[name].astype(np.float64) - local[name].astype(np.float64)
        np.testing.assert_allclose(change[name], moved / (STEPS * RATE), rtol=1e-5, atol=1e-6)
        assert np.abs(change[name]).max() > 1e-3
    assert content.metric_records[keys.METRICS][keys.DECISION] == 1


def test_equal_control_variates_are_no_correction(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node(1)
    plain = node(2, local_rule="sgd").array_records[keys.ARRAYS]
    equal = zeros() | stored(node, "after")
    assert node(2, equal, control_round=1).array_records[keys.ARRAYS] == plain
    assert node(2, noise(1), control_round=1).array_records[keys.ARRAYS] != plain


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_same_train_twice_is_the_same_reply(tmp_path: Path, on_disk: bool) -> None:
    node = Node(tmp_path if on_disk else None)
    node(1, noise(1))
    first = node(2, noise(2), control_round=1)
    after = stored(node, "after")
    again = node(2, noise(2), control_round=1)
    if on_disk:
        client.registry.forget()  # a restart: only the folder is left
        node = Node(tmp_path)
    last = node(2, noise(2), control_round=1)
    for other in (again, last):
        assert other.array_records[keys.ARRAYS] == first.array_records[keys.ARRAYS]
        assert other.array_records[keys.CONTROL_DELTA] == first.array_records[keys.CONTROL_DELTA]
    assert same(stored(node, "after"), after)


def test_a_round_starts_from_the_control_variate_that_the_server_added(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node(1)
    after_one = stored(node, "after")
    node(2, noise(2), control_round=1)
    assert same(stored(node, "before"), after_one)
    after_two = stored(node, "after")
    assert not same(after_two, after_one)
    node(3, noise(3), control_round=1)  # round 2 was surplus or late: it does not count
    assert same(stored(node, "before"), after_one)
    node(3, noise(3), control_round=1)
    after_three = stored(node, "after")
    node(5, noise(5), control_round=3)
    assert same(stored(node, "before"), after_three)
    node(6, noise(6), control_round=0)  # the server knows nothing of this client
    assert same(stored(node, "before"), zeros())


def test_a_server_that_does_not_say_has_added_all_earlier_rounds(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node(1)
    after_one = stored(node, "after")
    for _ in range(2):
        node(2, noise(2))
        assert same(stored(node, "before"), after_one)
    after_two = stored(node, "after")
    node(4, noise(4))
    assert same(stored(node, "before"), after_two)
    node(1)
    assert same(stored(node, "before"), zeros())


def test_what_is_sent_is_what_is_remembered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node(1, noise(1))
    change = unpacked(node(2, noise(2), control_round=1), keys.CONTROL_DELTA)
    before, after = stored(node, "before"), stored(node, "after")
    assert all(np.array_equal(before[n] + change[n], after[n]) for n in TRAINABLE)  # type: ignore[operator]


def test_only_trainable_parameters_have_a_control_variate(tmp_path: Path) -> None:
    sent = {n: np.full_like(a, 3) for n, a in INITIAL.items() if n not in TRAINABLE}
    content = Node(tmp_path)(1, noise(1) | sent)
    local, change = unpacked(content, keys.ARRAYS), unpacked(content, keys.CONTROL_DELTA)
    assert set(sent) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for name in sent:
        assert not change[name].any()
        assert not np.array_equal(local[name], INITIAL[name])
    packed = content.array_records[keys.CONTROL_DELTA]
    assert {n: a.dtype for n, a in packed.items()} == {FLAT: "float32", f"{FLAT}-int64": "int64"}


def test_each_run_has_its_own_and_sitting_out_changes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, CONFIG.model_copy(update={"requirement": "fixed", "fixed_requirement": -1.0}))
    node(1, noise(1))
    after = stored(node, "after")
    node(2, noise(2), run_key="other")
    assert node(2, noise(2), mandatory=0).metric_records[keys.METRICS][keys.DECISION] == 0
    assert same(stored(node, "after"), after)
    assert isinstance(node.store, DiskStore)
    assert {"control-k", "control-other"} <= set(node.store.names())


def test_epochs_count_as_the_steps_that_they_are(tmp_path: Path) -> None:
    one, other = Node(tmp_path / "one"), Node(tmp_path / "other")
    whole = one(1, local_steps=0, local_epochs=2)
    examples = int(whole.metric_records[keys.METRICS][keys.NUM_EXAMPLES])  # type: ignore[arg-type]
    same_steps = other(1, local_steps=2 * -(-examples // 16))
    assert whole.array_records[keys.CONTROL_DELTA] == same_steps.array_records[keys.CONTROL_DELTA]


def test_what_cannot_be_trained_is_one_line(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with pytest.raises(ConfigError, match=r"momentum = 0\.9 is not allowed with local-rule = scaffold: 0"):
        node(1, momentum=0.9)
    with pytest.raises(ConfigError, match="local-steps = 0 is not allowed"):
        node(1, local_steps=0)
    with pytest.raises(ValueError, match="array 'flat'"):
        client.app.app(message_with(ArrayRecord()), node.context)
    with pytest.raises(ValueError, match="message has no ArrayRecord 'control'"):
        client.app.app(message_with(None), node.context)
    assert node.store.read("control-k") is None


def message_with(control: ArrayRecord | None) -> Message:
    told = ConfigRecord({keys.LOCAL_RULE: "scaffold", keys.MANDATORY: 1, keys.SERVER_ROUND: 1, keys.RUN_KEY: "k"})
    content = RecordDict({keys.ARRAYS: LAYOUT.pack(INITIAL), keys.CONFIG: told})
    if control is not None:
        content[keys.CONTROL] = control
    return Message(content, 3, "train")


def test_the_rule_is_registered() -> None:
    assert TRAININGS["scaffold"] is controlled
