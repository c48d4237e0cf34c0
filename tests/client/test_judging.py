"""Clients that judge models by held-out data, as they would use them: requirement, decision, weight, evaluation."""

import copy
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from client.learner import Sent
from client.settings import NodeSettings
from client.state.store import DiskStore
from client.training.models import arrays_of
from client.training.task_learner import TaskLearner
from fedappeal.core.requirement import Evaluation, MeasuredOnce, Requirement
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split, with_held_out
from fedappeal.trained.card import card_in
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from tests.node import RUN_KEY, Node, metrics_of, participant_of

SETTINGS: dict[str, Scalar] = {
    **{"clients": 4, "model": "logistic", "solo.steps": 40, "solo.learning-rate": 0.5, "batch-size": 16},
    **{"local-steps": 3, "learning-rate": 0.2, "goodwill": 5},
}
CONFIG = RunConfig.parse(SETTINGS)
NODE = NodeSettings(partition_id=2, device="cpu")
TASK = load_task(CONFIG.task_settings())


def with_settings(**changed: Scalar) -> RunConfig:
    return RunConfig.parse(SETTINGS | {key.replace("_", "-"): value for key, value in changed.items()})


def flat(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(split.x, torch.Tensor)
    assert isinstance(split.y, torch.Tensor)
    return split.x.reshape(len(split), -1), split.y


def loss_of(layer: nn.Linear, split: Split) -> float:
    x, y = flat(split)
    return float(functional.cross_entropy(layer(x), y).detach())


def layer_of(arrays: dict[str, np.ndarray]) -> nn.Linear:
    layer = nn.Linear(64, 10)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(arrays["output.weight"])))
        layer.bias.copy_(torch.from_numpy(np.array(arrays["output.bias"])))
    return layer


def descend(layer: nn.Linear, split: Split, batches: np.ndarray, rate: float) -> None:
    """Plain SGD, written a second time."""
    x, y = flat(split)
    for batch in batches:
        loss = functional.cross_entropy(layer(x[batch]), y[batch])
        gradients = torch.autograd.grad(loss, [layer.weight, layer.bias])
        with torch.no_grad():
            for parameter, gradient in zip((layer.weight, layer.bias), gradients, strict=True):
                parameter -= rate * gradient


def initial() -> dict[str, np.ndarray]:
    return dict(arrays_of(TASK.initial_model(0)))


def test_the_solo_requirement_is_the_best_of_its_path_on_data_that_it_never_trains_on(tmp_path: Path) -> None:
    config = with_settings(judge_on="held-out")
    requirement = participant_of(config, NODE, DiskStore(tmp_path)).begin_run("key", initial())
    data = with_held_out(TASK.load(2))
    assert data.held_out is not None
    drawn = np.asarray(Minibatches(0, "client-0002", 0, len(data.train), 40, 16, "warm-up"))
    layer, losses = layer_of(initial()), []
    losses.append(loss_of(layer, data.held_out))
    for stretch in np.array_split(drawn, 20):
        descend(layer, data.train, stretch, 0.5)
        losses.append(loss_of(layer, data.held_out))
    assert requirement.rho == pytest.approx(min(losses), rel=1e-5)
    assert min(losses) < losses[-1]  # training on overfits here: the last model would be an easier question
    assert participant_of(config, NODE, DiskStore(tmp_path)).begin_run("key", initial()).rho == requirement.rho


def test_the_stored_requirement_says_by_what_it_was_measured(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    for judge_on in ("held-out", "cross-fitted", "train"):
        participant_of(with_settings(judge_on=judge_on), NODE, store).begin_run("key", initial())
    assert len([name for name in store.names() if name.startswith("requirement-")]) == 3


@pytest.mark.parametrize("steps", [0, 3])
def test_a_client_decides_and_reports_by_the_model_as_it_would_use_it(tmp_path: Path, steps: int) -> None:
    node = Node(with_settings(adaptation_steps=steps), tmp_path, partition_id=2)
    content = node("query")
    data = with_held_out(TASK.load(2))
    assert data.held_out is not None
    assert metrics_of(content) == {keys.NUM_EXAMPLES: len(data.train)}
    one = participant_of(with_settings(adaptation_steps=steps), NODE, DiskStore(tmp_path))
    rho = one.requirement(RUN_KEY).rho

    layer = layer_of(initial())
    as_sent = loss_of(layer, data.test)
    descend(
        layer, data.train, np.asarray(Minibatches(0, "client-0002", 0, len(data.train), steps, 16, "adaptation")), 0.2
    )
    told = metrics_of(node("train", server_round=1, mandatory=1))
    assert told[APPEAL_WEIGHT] == pytest.approx(appeal_weight(loss_of(layer, data.held_out), rho), rel=1e-4)
    answer = metrics_of(node("evaluate", split="test", strategy="maxfl"))
    assert answer[keys.LOSS] == pytest.approx(as_sent, rel=1e-5)
    assert answer[keys.APPEALED] == int(loss_of(layer, data.test) < rho)
    assert answer[keys.APPEALED_HELD_OUT] == int(loss_of(layer, data.held_out) < rho)
    assert keys.APPEALED_TRAIN not in answer
    x, y = flat(data.test)
    accuracy = float((layer(x).argmax(1) == y).double().mean())
    assert answer[keys.SERVED] == int(accuracy >= one.requirement(RUN_KEY).solo_score)
    assert answer.get("adapted-accuracy", None if steps else accuracy) == (
        pytest.approx(accuracy) if steps else accuracy
    )


@pytest.mark.parametrize(("strategy", "reads"), [("maxfl", False), ("fedalign", True)])
def test_training_data_are_measured_only_where_their_loss_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, reads: bool
) -> None:
    node = Node(with_settings(strategy=strategy), tmp_path, partition_id=2)
    node("query")
    measure, splits = TaskLearner.measure, list[str]()

    def measured(learner: TaskLearner, arrays: Arrays, split: str, sent: Sent | None = None) -> Evaluation:
        splits.append(split)
        return measure(learner, arrays, split, sent)

    monkeypatch.setattr(TaskLearner, "measure", measured)
    assert metrics_of(node("train", server_round=1, mandatory=1))[keys.DECISION] == Decision.JOINED
    assert keys.HELD_OUT_SPLIT in splits
    assert (keys.TRAIN_SPLIT in splits) == reads


def test_an_evaluation_that_is_read_late_is_measured_once_and_can_be_copied() -> None:
    calls: list[int] = []
    late = MeasuredOnce(lambda: Evaluation(float(len(calls)), calls.append(1) or 0.5))  # type: ignore[func-returns-value]
    assert copy.copy(late) is not late
    assert calls == []
    assert (late.loss, late.score, late.loss, late.error, calls) == (0.0, 0.5, 0.0, 0.5, [1])


def test_a_client_with_few_examples_judges_by_its_training_loss_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = with_settings(max_train_examples=19)
    one = participant_of(config, NODE, DiskStore(tmp_path))
    with caplog.at_level(logging.INFO, "fedappeal.client"):
        one.begin_run("key", initial())
    assert one.learner.judged_split == keys.TRAIN_SPLIT
    assert one.learner.data.counts[0] == 19
    assert "19 training examples are fewer than 20" in caplog.text


def test_a_requirement_that_the_owner_fixed_earlier_gets_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = NodeSettings(partition_id=2, device="cpu", fixed_requirement=0.3)
    with caplog.at_level(logging.WARNING, "fedappeal.client"):
        participant_of(CONFIG, node, DiskStore(tmp_path)).begin_run("key", initial())
    assert "fixed-requirement = 0.3 is compared with the loss on held-out data in this run" in caplog.text


def test_what_names_no_data_to_judge_on_means_the_papers_reading(tmp_path: Path) -> None:
    older = {key: value for key, value in CONFIG.as_config().items() if key not in ("judge-on", "goodwill")}
    node = Node(CONFIG, tmp_path, partition_id=2)
    node.context.run_config = {**older, "adaptation-steps": 0}
    assert metrics_of(node("query")) == {keys.NUM_EXAMPLES: len(TASK.load(2).train)}
    answer = metrics_of(node("evaluate", split="test"))
    assert keys.APPEALED_TRAIN in answer
    assert keys.APPEALED_HELD_OUT not in answer


@pytest.mark.parametrize("strategy", ["ditto", "perfedavg", "pfedme"])
def test_personalised_strategies_are_judged_by_what_they_make_of_the_model_that_was_sent(
    tmp_path: Path, strategy: str
) -> None:
    node = Node(with_settings(strategy=strategy), tmp_path, partition_id=2)
    node("query")
    one = participant_of(with_settings(strategy=strategy), NODE, DiskStore(tmp_path))
    use = one.use_of(one.strategy)
    assert use is not None
    arrays = initial()
    used = one.learner.train(arrays, use)
    data = with_held_out(TASK.load(2))
    assert data.held_out is not None
    rho = one.requirement(RUN_KEY).rho
    layer = layer_of(dict(used))
    answer = metrics_of(node("evaluate", split="test", strategy=strategy))
    assert answer[keys.APPEALED_HELD_OUT] == int(loss_of(layer, data.held_out) < rho)
    assert answer[keys.APPEALED] == int(loss_of(layer, data.test) < rho)
    assert one.judge(arrays, Sent("m"), keys.HELD_OUT_SPLIT, use).loss == pytest.approx(
        loss_of(layer, data.held_out), rel=1e-5
    )


def test_dittos_stored_model_does_not_decide(tmp_path: Path) -> None:
    config = with_settings(strategy="ditto", requirement="fixed")
    config = config.with_plugins([("fixed.loss", 0.5)])
    node = Node(config, tmp_path, partition_id=2)
    node("query")
    layout = Layout.of(initial())
    for number in range(1, 4):
        node("train", server_round=number, mandatory=1, strategy="ditto")  # its v_k is trained
    useless = layout.pack({name: np.full_like(array, 50.0) for name, array in initial().items()})
    useless_arrays = layout.unpack(useless)
    one = participant_of(config, NODE, DiskStore(tmp_path))
    judged = one.judge(dict(useless_arrays), Sent("u"), keys.HELD_OUT_SPLIT, one.use_of(one.strategy))
    met = Requirement(0.5).met(judged)
    decision = metrics_of(node("train", useless, server_round=9, mandatory=0, strategy="ditto"))[keys.DECISION]
    assert decision == int(met)


def test_the_preferred_model_is_kept_as_it_was_measured(tmp_path: Path) -> None:
    node = Node(with_settings(requirement="fixed").with_plugins([("fixed.loss", 100.0)]), tmp_path, partition_id=2)
    node("query")
    node("evaluate", split="test", strategy="maxfl", final=1)
    record = DiskStore(tmp_path).read(f"preferred-{RUN_KEY}")
    assert record is not None
    layer, (x, y) = layer_of(dict(record.arrays)), flat(TASK.load(2).test)
    card = card_in(record.values, tmp_path)
    assert card is not None
    assert card.figures["accuracy"] == pytest.approx(float((layer(x).argmax(1) == y).double().mean()))
    assert not np.array_equal(record.arrays["output.weight"], initial()["output.weight"])


def test_a_split_of_another_name_is_one_line(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path, partition_id=2)
    node("query")
    with pytest.raises(ConfigError, match=r"^split = 'all' is not allowed: train, test$"):
        node("evaluate", split="all")
