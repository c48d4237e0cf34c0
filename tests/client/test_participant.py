"""One client of one run: identity, judging, training, what it keeps."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from client.learner import Job, Sent
from client.participant import Participant
from client.settings import NodeSettings
from client.state.memory import client_identity
from client.state.store import ContextStore, DiskStore
from client.training.devices import pick_device
from client.training.models import arrays_of, evaluate
from client.training.requests import Arithmetic, EvaluateRequest
from client.training.sgd import SGD
from client.training.task_learner import TaskLearners
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import Evaluation, Requirement
from fedappeal.protocol.keys import HELD_OUT_SPLIT, TEST_SPLIT, TRAIN_SPLIT, Decision
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.trained.card import card_in
from tests.node import Node, changed, participant_of, run_config

CONFIG = run_config(clients=4, solo__steps=3, batch_size=16)
NODE = NodeSettings(partition_id=1, device="cpu")
TRAINING = LocalTrainingSettings(learning_rate=0.1, batch_size=16, local_steps=5)


def participant(config: RunConfig = CONFIG, node: NodeSettings = NODE) -> Participant:
    return participant_of(config, node, ContextStore(RecordDict()))


def train(one: Participant, arrays: Arrays, server_round: int) -> Arrays:
    return one.learner.train(arrays, Job(SGD(), TRAINING, "batches", server_round))


def same(one: Arrays, other: Arrays) -> bool:
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
    initial = arrays_of(one.learner.task.initial_model(0))
    kept = {k: v.copy() for k, v in initial.items()}
    first = train(one, initial, 3)
    train(one, first, 4)
    assert same(train(one, initial, 3), first)
    assert same(train(other, initial, 3), first)
    assert not same(train(one, initial, 4), first)
    assert not same(train(participant(node=NodeSettings(partition_id=2, device="cpu")), initial, 3), first)
    assert same(initial, kept)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_local_rule_is_named() -> None:
    line = r"local-rule = 'magic' is not allowed: sgd, .*, or package\.module:Name of your own"
    with pytest.raises(ConfigError, match=line) as error:
        Node(changed(CONFIG, strategy="fedavg"))("train", told={"local-rule": "magic"}, mandatory=1)
    assert "\n" not in str(error.value)


def test_a_model_is_judged_without_dropout_on_the_split_that_is_asked_for() -> None:
    one = participant()
    model = one.learner.task.initial_model(3)
    arrays = arrays_of(model)
    for split, data in ((TRAIN_SPLIT, one.learner.data.train), (TEST_SPLIT, one.learner.data.test)):
        found = one.judge(arrays, Sent("m"), split)
        alone = evaluate(one.learner.task, model, data)
        assert (found.loss, found.score) == pytest.approx((alone.loss, alone.score))
        model.eval()
        logits = model(data.x)
        assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, data.y).item(), rel=1e-5)
    again = one.judge(arrays, Sent("m"), TRAIN_SPLIT)
    train(one, arrays, 1)
    assert one.judge(arrays, Sent("m"), TRAIN_SPLIT) == again


def test_another_model_is_judged_anew() -> None:
    one = participant()
    first, second = (arrays_of(one.learner.task.initial_model(seed)) for seed in (0, 1))
    found = [one.judge(a, Sent(n), TEST_SPLIT).loss for a, n in ((first, "1"), (second, "2"), (first, "1"))]
    assert found[0] == found[2] != found[1]


def test_tuning_trains_a_copy_before_the_judgement() -> None:
    one = participant()
    arrays = arrays_of(one.learner.task.initial_model(0))
    as_sent, tuned = (one.judge(arrays, Sent("m"), TRAIN_SPLIT, one.tuning(steps)) for steps in (0, 20))
    assert tuned.loss < as_sent.loss
    assert one.judge(arrays, Sent("m"), TRAIN_SPLIT, one.tuning(20)) == tuned
    assert participant().judge(arrays, Sent("m"), TRAIN_SPLIT, one.tuning(20)) == tuned
    assert one.judge(arrays, Sent("m"), TRAIN_SPLIT, one.tuning(0)) == as_sent


def test_an_owner_may_refuse_mandatory_rounds() -> None:
    def decide(one: Participant, loss: float, mandatory: bool) -> Decision:
        situation = Situation(evaluation=Evaluation(loss, 0.5), mandatory=mandatory)
        return one.decide(situation, Requirement(0.5), "k", "")[0]

    willing = participant()
    unwilling = participant(node=NodeSettings(partition_id=1, device="cpu", refuse_mandatory=True))
    assert decide(willing, 0.9, True) is Decision.JOINED
    assert decide(unwilling, 0.9, True) is Decision.SAT_OUT
    assert decide(unwilling, 0.4, True) is Decision.JOINED
    assert decide(willing, 0.9, False) is Decision.SAT_OUT
    always = participant(config=changed(CONFIG, participation="always"))
    assert decide(always, 0.9, False) is Decision.JOINED


def test_having_left_belongs_to_one_run_and_survives(tmp_path: Path) -> None:
    one = participant_of(CONFIG, NODE, DiskStore(tmp_path))
    one.memory("first").leave(3)
    again = participant_of(CONFIG, NODE, DiskStore(tmp_path))
    assert [again.memory("first").has_left(r) for r in (1, 3, 4, 9)] == [False, False, True, True]
    assert not again.memory("second").has_left(9)
    again.begin_run("first", arrays_of(again.learner.task.initial_model(0)))
    assert again.memory("first").has_left(4)


SOLO = Requirement(0.5, {"w": np.full(2, 7, np.float32)}, 0.75)


def test_the_preferred_model_is_the_one_that_serves_this_client_better() -> None:
    one = participant()
    sent = {"w": np.zeros(2, np.float32)}
    good, bad = Evaluation(0.4, 0.9), Evaluation(0.6, 0.8)
    for requirement, on_test, which, value, figures in (
        (SOLO, good, "global", 0.0, {"accuracy": 0.9, "loss": 0.4}),
        (SOLO, bad, "solo", 7.0, {"accuracy": 0.75}),
        (Requirement(0.5), bad, "global", 0.0, {"accuracy": 0.8, "loss": 0.6}),
    ):
        assert one.keep_preferred(sent, requirement, on_test, "run", 4) == which
        kept = one.store.read("preferred")
        assert kept is not None
        assert (kept.values["which"], kept.values["run-key"]) == (which, "run")
        assert kept.arrays["w"].tolist() == [value, value]
        card = card_in(kept.values, Path("preferred"))
        assert (card.which, card.round, card.run_key, card.strategy) == (which, 4, "run", "maxfl")
        assert (card.task, card.requirement_met, card.figures) == ("digits", on_test is good, figures)


def test_the_accuracy_of_the_preferred_model() -> None:
    one = participant()
    assert one.preferred_score(Evaluation(0.4, 0.9), SOLO) == 0.9
    assert one.preferred_score(Evaluation(0.5, 0.9), SOLO) == 0.75
    assert one.preferred_score(Evaluation(0.4, 0.9), Requirement(0.5)) is None


def test_a_split_has_as_many_examples_as_it_holds() -> None:
    one = participant(changed(CONFIG, train_share=0.7, judge_on="held-out"))
    assert one.learner.data.held_out is not None
    held = {split: one.learner.examples(split) for split in (TRAIN_SPLIT, TEST_SPLIT, HELD_OUT_SPLIT)}
    assert held == {
        TRAIN_SPLIT: len(one.learner.data.train),
        TEST_SPLIT: len(one.learner.data.test),
        HELD_OUT_SPLIT: len(one.learner.data.held_out),
    }
    assert len(set(held.values())) == 3
    with pytest.raises(ConfigError, match="'all' is not allowed"):
        one.learner.examples("all")


class Noted(Arithmetic):
    """Notes under which name other clients may share what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: list[str] = []

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        self.shared.append(request.shared)
        return super().evaluate(request)


@pytest.mark.parametrize(("share", "name"), [("all", "hash"), ("!*.bias", "")])
def test_a_measurement_is_shared_where_all_of_the_model_travels(share: str, name: str) -> None:
    config, arithmetic = changed(CONFIG, model="mlp", share=share), Noted()
    one = participant_of(config, NODE, ContextStore(RecordDict()), TaskLearners(arithmetic))
    assert bool(one.learner.parts.personal) == (share != "all")
    one.judge(arrays_of(one.learner.task.initial_model(0)), Sent("hash"), TRAIN_SPLIT)
    assert arithmetic.shared == [name]


@pytest.mark.parametrize(("goodwill", "rounds"), [(0, None), (1, (0, 1)), (3, (0, 3))])
def test_the_rounds_that_a_client_joins_on_request(goodwill: int, rounds: tuple[int, int] | None) -> None:
    one = participant(node=NodeSettings(partition_id=1, device="cpu", goodwill=goodwill))
    assert one.goodwill("k") == rounds


def test_only_a_round_that_does_not_meet_the_requirement_is_paid_for() -> None:
    one = participant(changed(CONFIG, goodwill=5))
    for number, loss in ((1, 0.4), (2, 0.9), (3, 0.4)):
        situation = Situation(server_round=number, evaluation=Evaluation(loss, 0.5), mandatory=True)
        decided = one.decide(situation, Requirement(0.5), "k", f"{number}")
        assert decided == (Decision.JOINED, "2" if number == 2 else "")
