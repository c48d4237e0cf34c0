"""One client of one run: identity, judging, training, what it keeps."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from client.arithmetic import Evaluation
from client.loaded import pick_device
from client.models import arrays_of, evaluate
from client.participant import Participant, client_identity
from client.requirement import Requirement
from client.settings import NodeSettings
from client.state import ContextStore, DiskStore
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig
from fedappeal.protocol.keys import TEST_SPLIT, TRAIN_SPLIT, Decision

CONFIG = RunConfig(clients=4, warmup_steps=3, batch_size=16)
NODE = NodeSettings(partition_id=1, device="cpu")
WORK = LocalWork(learning_rate=0.1, batch_size=16, local_steps=5)


def participant(config: RunConfig = CONFIG, node: NodeSettings = NODE) -> Participant:
    return Participant(config, node, ContextStore(RecordDict()))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[k], other[k]) for k in one)


def test_an_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    bare = NodeSettings()
    first = client_identity(bare, DiskStore(tmp_path / "a"))
    assert first.startswith("client-")
    assert client_identity(bare, DiskStore(tmp_path / "a")) == first
    assert client_identity(bare, DiskStore(tmp_path / "b")) != first
    assert client_identity(NodeSettings(client_id="anna"), DiskStore(tmp_path / "a")) == "anna"
    assert client_identity(NodeSettings(partition_id=7), DiskStore(tmp_path / "c")) == "client-0007"


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ({"partition-id": 4}, "partition-id = 4 is not allowed: 0 to 3"),
        ({}, "partition-id = -1 is not allowed"),
        ({"partition-id": 1, "num-partitions": 5}, "num-partitions = 5 is not allowed: the run has 4 clients"),
    ],
)
def test_a_share_of_the_data_that_is_not_there(node: dict[str, int], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        participant(node=NodeSettings.parse(node))


def test_a_device_that_is_not_there_is_named() -> None:
    assert pick_device("cpu").type == "cpu"
    missing = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(ConfigError, match=f"device = '{missing}' is not allowed"):
        pick_device(missing)


def test_training_is_a_pure_function_of_client_and_round() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, other = participant(), participant()
    initial = arrays_of(one.task.initial_model(0))
    kept = {k: v.copy() for k, v in initial.items()}
    first = one.train(initial, 3, "sgd", WORK)
    one.train(first, 4, "sgd", WORK)
    assert same(one.train(initial, 3, "sgd", WORK), first)
    assert same(other.train(initial, 3, "sgd", WORK), first)
    assert not same(one.train(initial, 4, "sgd", WORK), first)
    assert not same(
        participant(node=NodeSettings(partition_id=2, device="cpu")).train(initial, 3, "sgd", WORK), first
    )
    assert same(initial, kept)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_local_rule_is_named() -> None:
    one = participant()
    with pytest.raises(ValueError, match="local-rule = 'magic' is not known"):
        one.train(arrays_of(one.task.initial_model(0)), 1, "magic", WORK)


def test_a_model_is_judged_without_dropout_on_the_split_that_is_asked_for() -> None:
    one = participant()
    model = one.task.initial_model(3)
    arrays = arrays_of(model)
    for split, data in ((TRAIN_SPLIT, one.data.train), (TEST_SPLIT, one.data.test)):
        found = one.judge(arrays, "m", split)
        assert (found.loss, found.accuracy) == pytest.approx(evaluate(one.task, model, data))
        model.eval()
        logits = model(data.x)
        assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, data.y).item(), rel=1e-5)
    again = one.judge(arrays, "m", TRAIN_SPLIT)
    one.train(arrays, 1, "sgd", WORK)
    assert one.judge(arrays, "m", TRAIN_SPLIT) == again


def test_another_model_is_judged_anew() -> None:
    one = participant()
    first, second = (arrays_of(one.task.initial_model(seed)) for seed in (0, 1))
    found = [one.judge(a, n, TEST_SPLIT).loss for a, n in ((first, "1"), (second, "2"), (first, "1"))]
    assert found[0] == found[2] != found[1]


def test_tuning_trains_a_copy_before_the_judgement() -> None:
    one = participant()
    arrays = arrays_of(one.task.initial_model(0))
    as_sent, tuned = (one.judge(arrays, "m", TRAIN_SPLIT, steps) for steps in (0, 20))
    assert tuned.loss < as_sent.loss
    assert one.judge(arrays, "m", TRAIN_SPLIT, 20) == tuned
    assert participant().judge(arrays, "m", TRAIN_SPLIT, 20) == tuned
    assert one.judge(arrays, "m", TRAIN_SPLIT, 0) == as_sent


def test_an_owner_may_refuse_mandatory_rounds() -> None:
    requirement = Requirement(0.5, {}, 0.0)
    willing = participant()
    unwilling = participant(node=NodeSettings(partition_id=1, device="cpu", refuse_mandatory=True))
    assert willing.decide(Evaluation(0.9, 0.5), requirement, {keys.MANDATORY: 1}) is Decision.JOINED
    assert unwilling.decide(Evaluation(0.9, 0.5), requirement, {keys.MANDATORY: 1}) is Decision.SAT_OUT
    assert unwilling.decide(Evaluation(0.4, 0.5), requirement, {keys.MANDATORY: 1}) is Decision.JOINED
    assert willing.decide(Evaluation(0.9, 0.5), requirement, {keys.MANDATORY: 0}) is Decision.SAT_OUT
    always = participant(config=CONFIG.model_copy(update={"participation": "always"}))
    assert always.decide(Evaluation(0.9, 0.5), requirement, {keys.MANDATORY: 0}) is Decision.JOINED


def test_having_left_belongs_to_one_run_and_survives(tmp_path: Path) -> None:
    one = Participant(CONFIG, NODE, DiskStore(tmp_path))
    one.leave("first", 3)
    again = Participant(CONFIG, NODE, DiskStore(tmp_path))
    assert [again.has_left("first", r) for r in (1, 3, 4, 9)] == [False, False, True, True]
    assert not again.has_left("second", 9)
    again.begin_run("first", arrays_of(again.task.initial_model(0)))
    assert again.has_left("first", 4)


SOLO = Requirement(0.5, {"w": np.full(2, 7, np.float32)}, 0.75)


def test_the_preferred_model_is_the_one_that_serves_this_client_better() -> None:
    one = participant()
    sent = {"w": np.zeros(2, np.float32)}
    for requirement, appealed, which, value in (
        (SOLO, True, "global", 0.0),
        (SOLO, False, "solo", 7.0),
        (Requirement(0.5, {}, float("nan")), False, "global", 0.0),
    ):
        assert one.keep_preferred(sent, requirement, appealed, "run") == which
        kept = one.store.read("preferred")
        assert kept is not None
        assert dict(kept.values) == {"which": which, "run-key": "run"}
        assert kept.arrays["w"].tolist() == [value, value]


def test_the_accuracy_of_the_preferred_model() -> None:
    one = participant()
    assert one.preferred_accuracy(Evaluation(0.4, 0.9), SOLO) == 0.9
    assert one.preferred_accuracy(Evaluation(0.5, 0.9), SOLO) == 0.75
    assert one.preferred_accuracy(Evaluation(0.4, 0.9), Requirement(0.5, {}, float("nan"))) is None
