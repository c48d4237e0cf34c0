"""ADA-GD's client: the gradient it sends, what it refuses, and that leaving is for good."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor, nn

from client.joined_round import JoinedRound
from client.learner import Job, Sent
from client.participant import Participant
from client.settings import NodeSettings
from client.state.store import ContextStore, DiskStore
from client.training.models import arrays_of, evaluate, mean_gradient
from client.training.sgd import SGD
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.requirement import UNMEASURED, Measured
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError, Scalar
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split
from strategies import AdaGD
from tests import node as one_client
from tests.node import changed, metrics_of, participant_of, run_config

CONFIG = run_config(
    strategy="adagd", clients=4, solo__steps=3, batch_size=16, adagd__precision=0.3, adagd__form="one-gradient"
)
PRECISION = 0.3
TASK = load_task(CONFIG.task_settings())
INITIAL = arrays_of(TASK.initial_model(0))
LAYOUT = Layout.of(INITIAL)
TRAINING: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 16, "local_steps": 5}
NOT_MEASURED = Measured(UNMEASURED, 0.0, met=False)

Named = dict[str, np.ndarray]


def participant() -> Participant:
    return participant_of(CONFIG, NodeSettings(partition_id=1, device="cpu"), ContextStore(RecordDict()))


def joined(one: Participant, rule: LocalRule, arrays: Named, server_round: int = 1, **settings: Any) -> JoinedRound:
    content = RecordDict({keys.ARRAYS: Layout.of(arrays).pack(arrays)})
    training = LocalTrainingSettings(**(TRAINING | settings))
    return JoinedRound(one, "", rule, content, arrays, server_round, "k", training, {}, NOT_MEASURED)


def sent_by(one: Participant, server_round: int = 1, own: dict[str, Scalar] | None = None, **settings: Any) -> Named:
    """What a client sends for the initial model, by name."""
    rule = AdaGD.LocalRule(AdaGD.Settings.parse({"form": "one-gradient", **(own or {})}))
    return LAYOUT.unpack(rule.reply(joined(one, rule, INITIAL, server_round, **settings))[keys.ARRAYS])


def by_hand(x: Tensor, y: Tensor, arrays: Named = INITIAL) -> Named:
    """Gradient of the mean cross-entropy of the task's mlp, by back-propagation in numpy; no dropout."""
    w = {k: v.astype(np.float64) for k, v in arrays.items()}
    a0 = x.numpy().reshape(len(x), -1).astype(np.float64)
    z1 = a0 @ w["hidden1.weight"].T + w["hidden1.bias"]
    a1 = np.maximum(z1, 0)
    z2 = a1 @ w["hidden2.weight"].T + w["hidden2.bias"]
    a2 = np.maximum(z2, 0)
    logits = a2 @ w["output.weight"].T + w["output.bias"]
    d3 = np.exp(logits - logits.max(axis=1, keepdims=True))
    d3 /= d3.sum(axis=1, keepdims=True)
    d3[np.arange(len(y)), y.numpy()] -= 1
    d3 /= len(y)
    d2 = d3 @ w["output.weight"] * (z2 > 0)
    d1 = d2 @ w["hidden2.weight"] * (z1 > 0)
    found = {}
    for name, delta, before in (("output", d3, a2), ("hidden2", d2, a1), ("hidden1", d1, a0)):
        found |= {f"{name}.weight": delta.T @ before, f"{name}.bias": delta.sum(axis=0)}
    return found


def close(one: Named, other: Named, atol: float = 1e-6) -> bool:
    return set(one) == set(other) and all(np.allclose(one[k], other[k], rtol=1e-4, atol=atol) for k in one)


def test_it_is_the_gradient_of_the_mean_loss_over_all_training_examples() -> None:
    one = participant()
    found = sent_by(one)
    data = one.learner.data.train
    assert close(found, by_hand(data.x, data.y))
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {k: (v.shape, v.dtype) for k, v in INITIAL.items()}
    # By central differences of the loss that the client reports, along the gradient itself.
    length = np.sqrt(sum(float((v.astype(np.float64) ** 2).sum()) for v in found.values()))
    losses = []
    for sign in (1, -1):
        moved = {k: (INITIAL[k] + sign * 0.02 * found[k] / length).astype(np.float32) for k in INITIAL}
        losses.append(one.judge(moved, Sent(str(sign)), "train").loss)
    assert (losses[0] - losses[1]) / 0.04 == pytest.approx(length, rel=1e-2)


def test_chunks_are_weighted_by_their_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    one = participant()
    whole = sent_by(one)
    assert len(one.learner.data.train) % 50
    monkeypatch.setattr(one.learner.task, "evaluation_batch", 50)  # the last chunk is smaller
    assert close(sent_by(one), whole)


def test_it_does_not_depend_on_the_round_or_on_what_was_trained_before() -> None:
    one = participant()
    before = torch.get_rng_state()
    first = sent_by(one, 1)
    one.learner.train(INITIAL, Job(SGD(), LocalTrainingSettings(**TRAINING), "batches", 1))
    again = sent_by(one, 7)
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert torch.equal(torch.get_rng_state(), before)


BATCH: dict[str, Scalar] = {"gradient-batch": 20}


def test_a_minibatch_gradient_is_of_the_examples_drawn_for_the_round() -> None:
    one = participant()
    data = one.learner.data.train
    for server_round in (1, 2):
        (batch,) = np.asarray(Minibatches(CONFIG.seed, one.client_id, server_round, len(data), 1, 20, "gradient"))
        assert len(set(batch)) == 20
        assert close(sent_by(one, server_round, BATCH), by_hand(data.x[batch], data.y[batch]))
    assert not close(sent_by(one, 1, BATCH), sent_by(one, 2, BATCH))
    assert close(sent_by(one, 1, {"gradient-batch": 10**6}), sent_by(one))  # no more than there are


@pytest.mark.parametrize("size", [0, 20])
def test_several_local_steps_send_how_far_they_went(size: int) -> None:
    one = participant()
    data = one.learner.data.train
    w = {k: v.astype(np.float64) for k, v in INITIAL.items()}
    for batch in np.asarray(Minibatches(CONFIG.seed, one.client_id, 3, len(data), 4, size or len(data), "gradient")):
        found = by_hand(data.x[batch], data.y[batch], w)
        w = {k: w[k] - 0.5 * found[k] for k in w}
    expected = {k: (INITIAL[k] - w[k]) / (4 * 0.5) for k in w}
    sent = sent_by(one, 3, {"gradient-batch": size, "gradient-steps": 4}, learning_rate=0.5)
    assert close(sent, expected, atol=1e-5)
    assert not close(sent, sent_by(one, 3, {"gradient-batch": size}), atol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.9), ("weight_decay", 0.01)])
def test_what_the_gradient_does_not_have_is_refused(name: str, value: float) -> None:
    line = f"{name.replace('_', '-')} = {value} is not allowed with local-rule = 'gradient': 0"
    with pytest.raises(ConfigError, match=line):
        sent_by(participant(), **{name: value})


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    model[1].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)), "BatchNorm .*: 1 "),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False)), "BatchNorm .*: 1 "),
        (frozen(), r"model with 1\.bias is not allowed"),
    ],
)
def test_a_model_with_more_than_trainable_parameters_is_refused(
    model: nn.Module, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = participant()
    one.learner.model, one.learner.expects = model, Layout.of(arrays_of(model))
    one.learner.trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    rule = AdaGD.LocalRule()
    with pytest.raises(ConfigError, match=line) as error:
        rule.reply(joined(one, rule, arrays_of(model)))
    assert "\n" not in str(error.value)


def test_a_parameter_that_the_loss_does_not_see_has_gradient_zero() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(64, 10), nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x.flatten(1))
            return out

    data = Split(torch.randn(5, 1, 8, 8), torch.arange(5))
    found = dict(zip(("spare", "weight", "bias"), mean_gradient(TASK, Spare(), data), strict=True))
    assert found["spare"].tolist() == [0, 0, 0]
    assert found["weight"].any()


# -- through the client app ------------------------------------------------------------------------------


class Node(one_client.Node):
    """One client with its state on disk; `restarted` is the same one in a new process."""

    def __init__(self, folder: Path, **settings: Scalar) -> None:
        super().__init__(changed(CONFIG, **settings), folder)


def train(node: one_client.Node, arrays: Arrays, server_round: int, run_key: str = "k") -> RecordDict:
    return node("train", arrays, server_round=server_round, run_key=run_key)


told_by = metrics_of


def good_model() -> Named:
    """A model that client 1 is content with: its training loss is below 0.3."""
    one = participant()
    trained = one.learner.train(
        INITIAL, Job(SGD(), LocalTrainingSettings(**(TRAINING | {"local_steps": 300})), "batches", 1)
    )
    assert one.judge(trained, Sent("good"), "train").loss <= PRECISION
    return trained


def test_a_joined_reply_carries_gradient_and_loss_of_the_model_that_was_sent(tmp_path: Path) -> None:
    content = train(Node(tmp_path), INITIAL, 1)
    loss = evaluate(TASK, TASK.initial_model(0), TASK.load(1).train).loss
    assert told_by(content) == {
        keys.NUM_EXAMPLES: len(TASK.load(1).train),
        keys.DECISION: 1,
        keys.LOSS: pytest.approx(loss),
    }
    record = content[keys.ARRAYS]
    assert isinstance(record, ArrayRecord)
    data = TASK.load(1).train
    assert close(LAYOUT.unpack(record), by_hand(data.x, data.y))


def test_a_client_that_is_content_leaves_for_good_and_a_restart_does_not_bring_it_back(tmp_path: Path) -> None:
    node, good = Node(tmp_path), good_model()
    assert told_by(train(node, INITIAL, 1))[keys.DECISION] == 1
    left = train(node, good, 2)
    assert told_by(left) == {keys.NUM_EXAMPLES: len(TASK.load(1).train), keys.DECISION: -1}
    assert list(left) == [keys.METRICS]
    again = node.restarted()
    # The round in which it left is decided as before; any later one finds it gone, whatever the model.
    assert told_by(train(again, good, 2))[keys.DECISION] == -1
    assert told_by(train(again, INITIAL, 3))[keys.DECISION] == -1
    assert told_by(train(again.restarted(), INITIAL, 9))[keys.DECISION] == -1
    assert DiskStore(tmp_path).read("run-k") is not None


def test_another_run_starts_clean(tmp_path: Path) -> None:
    node, good = Node(tmp_path), good_model()
    train(node, good, 2)
    again = node.restarted()
    assert told_by(train(again, INITIAL, 3, run_key="second"))[keys.DECISION] == 1
    assert told_by(train(again, INITIAL, 3))[keys.DECISION] == -1
    assert told_by(train(again, good, 4, run_key="second"))[keys.DECISION] == -1
    assert told_by(train(again, INITIAL, 5, run_key="second"))[keys.DECISION] == -1


def test_it_leaves_at_exactly_its_precision(tmp_path: Path) -> None:
    loss = evaluate(TASK, TASK.initial_model(0), TASK.load(1).train).loss
    for precision, decision in ((loss, -1), (float(np.nextafter(loss, 0)), 1)):
        node = Node(tmp_path / str(decision), adagd__precision=precision)
        assert told_by(train(node, INITIAL, 1))[keys.DECISION] == decision
