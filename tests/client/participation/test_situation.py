"""What a policy knows: the model's loss and accuracy, the requirement, the round, and its own past."""

import math
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field

from client.participation.policies import Always
from client.state.store import ContextStore, DiskStore
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.policy import Past, Policy, Situation
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.settings.config import ConfigError, Scalar
from tests.node import Node, changed, run_config


class Remembers(Policy):
    """Joins in every round but those that are named, and keeps what it was asked."""

    needs_history = True
    seen: ClassVar[list[Situation]] = []

    class Settings(PluginSettings):
        """The policy's settings."""

        sits_out: str = Field("2", description="rounds that it sits out, by commas")

    def decide(self, situation: Situation) -> Decision:
        self.seen.append(situation)
        out = str(situation.server_round) in self.settings.sits_out.split(",")
        return Decision.SAT_OUT if out else Decision.JOINED


class Forgets(Remembers):
    """The same without a past."""

    needs_history = False


class Blind(Forgets):
    """It does not look at the model."""

    needs_loss = False


CONFIG = run_config(
    clients=4,
    strategy="fedavg",
    requirement="fixed",
    fixed__loss=1.5,
    local_steps=2,
    participation=f"{__name__}:Remembers",
)


@pytest.fixture(autouse=True)
def seen() -> list[Situation]:
    Remembers.seen.clear()
    return Remembers.seen


def client(folder: Path | None = None, policy: str = "Remembers", **settings: Scalar) -> Node:
    config = changed(CONFIG, participation=f"{__name__}:{policy}", **settings)
    return Node(config, folder, allow="tests")


def test_a_policy_sees_loss_accuracy_requirement_and_round(seen: list[Situation]) -> None:
    node = client()
    node("train", server_round=3, mandatory=1)
    measured = node.metrics("evaluate", split=keys.TRAIN_SPLIT)
    (situation,) = seen
    assert (situation.loss, situation.score) == (measured[keys.LOSS], measured["accuracy"])
    assert situation.requirement == 1.5
    assert situation.met is (situation.loss < 1.5) is False
    assert (situation.server_round, situation.mandatory, situation.priority) == (3, True, False)
    assert situation.history == ()


def test_it_sees_what_the_server_tells_about_its_strategy(seen: list[Situation]) -> None:
    node = client(strategy="maxfl", maxfl__stabilizer=0.5)
    node("train", told={"maxfl.news": 7})
    assert dict(seen[0].told) == {
        **{"server-lr": 1.0, "stabilizer": 0.5, "step-sizes": "set", "local-steps": 2},
        **{"tuning-steps": 0, "news": 7},
    }


def test_an_owner_that_refuses_mandatory_rounds_is_not_told_of_them(seen: list[Situation]) -> None:
    node = Node(CONFIG, allow="tests", refuse_mandatory=True)
    node("train", mandatory=1)
    assert seen[0].mandatory is False


def test_its_past_is_its_own_decisions_and_losses(seen: list[Situation]) -> None:
    node = client()
    for server_round in (1, 2, 4):
        node(
            "train",
            node.layout.pack({k: v * server_round for k, v in node.initial.items()}),
            server_round=server_round,
        )  # type: ignore[operator]
    losses = [situation.loss for situation in seen]
    assert len(set(losses)) == 3
    first, second = Past(1, Decision.JOINED, losses[0]), Past(2, Decision.SAT_OUT, losses[1])
    assert [situation.history for situation in seen] == [(), (first,), (first, second)]


def test_a_round_that_is_run_again_does_not_count_twice(seen: list[Situation]) -> None:
    node = client()
    for server_round in (1, 2, 3):
        node("train", server_round=server_round)
    seen.clear()
    # A server that was killed in round 3 goes on from its checkpoint of round 1.
    for server_round in (2, 3, 3, 4):
        node("train", server_round=server_round)
    assert [[past.server_round for past in situation.history] for situation in seen] == [
        [1],
        [1, 2],
        [1, 2],
        [1, 2, 3],
    ]
    assert [past.decision for past in seen[-1].history] == [Decision.JOINED, Decision.SAT_OUT, Decision.JOINED]


def test_the_past_survives_a_restart_and_belongs_to_one_run(tmp_path: Path, seen: list[Situation]) -> None:
    node = client(tmp_path)
    node("train", server_round=1)
    node("train", server_round=2)
    again = node.restarted()
    again("train", server_round=3)
    again("train", server_round=3, run_key="other")
    assert [past.server_round for past in seen[2].history] == [1, 2]
    assert seen[2].history[0].loss == seen[0].loss
    assert seen[3].history == ()
    assert {"past-k", "past-other"} <= set(DiskStore(tmp_path).names())


def test_a_loss_that_is_not_a_number_is_remembered_as_such(tmp_path: Path, seen: list[Situation]) -> None:
    node = client(tmp_path)
    bad = {name: array + math.nan for name, array in node.initial.items()}  # type: ignore[operator]
    node("train", node.layout.pack(bad), server_round=1)
    node.restarted()("train", server_round=2)
    assert math.isnan(seen[1].history[0].loss)


def test_without_the_attribute_none_is_kept(seen: list[Situation]) -> None:
    node = client(policy="Forgets")
    for server_round in (1, 2):
        node("train", server_round=server_round)
    assert [situation.history for situation in seen] == [(), ()]
    assert ContextStore(node.context.state).read("past-k") is None


def test_a_policy_that_does_not_need_the_loss_costs_no_measurement(
    seen: list[Situation], monkeypatch: pytest.MonkeyPatch
) -> None:
    from client.participant import Participant

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("measured")

    node = client(policy="Blind", strategy="fedavg")
    monkeypatch.setattr(Participant, "judge", fail)
    assert node.metrics("train")[keys.DECISION] == 1
    assert math.isnan(seen[0].loss)
    with pytest.raises(AssertionError, match="measured"):
        client(policy="Forgets")("train")
    # The strategy needs it, whatever the policy does.
    with pytest.raises(AssertionError, match="measured"):
        client(policy="Blind", strategy="maxfl")("train")


@pytest.mark.parametrize("answer", [None, True, 1, 7, "joined", Decision])
def test_a_policy_that_returns_no_decision_is_one_line(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Always, "decide", lambda self, situation: answer)
    with pytest.raises(ConfigError) as error:
        Node(run_config(clients=4, strategy="fedavg", participation="always", solo__steps=1))("train")
    assert str(error.value) == f"policy Always returned {answer!r}: Decision.JOINED, SAT_OUT or LEFT is allowed"
