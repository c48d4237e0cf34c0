"""FedALIGN at the client: who joins, by which loss, and what a joined reply says (Algorithm 1, the client's side)."""

import dataclasses
import math

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from client.training.models import arrays_of
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Layout, content_size
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.tasks import load_task
from strategies.fedalign.alignment import EPSILON, GLOBAL_LOSS, MATCH_ON, Match, joins
from strategies.fedalign.strategy import PRIORITY
from tests import node as one_client
from tests.node import changed, metrics_of, run_config

CONFIG = run_config(
    strategy="fedalign", clients=4, fedalign__priority_clients=1, solo__steps=2, batch_size=16, local_steps=4
)
ON_ERROR = changed(CONFIG, fedalign__match_on="error")
TASK = load_task(CONFIG.task_settings())
INITIAL = TASK.initial_model(0)
LAYOUT = Layout.of(arrays_of(INITIAL))
TOO_LOW: dict[str, Scalar] = {GLOBAL_LOSS: -100.0, EPSILON: 1.0}


class Node(one_client.Node):
    """One client; of the four, only the one with partition-id 0 asks for priority."""

    def __init__(self, partition_id: int = 1, config: RunConfig = CONFIG, **node: Scalar) -> None:
        super().__init__(config, partition_id=partition_id, **node)

    def train(self, about: dict[str, Scalar] | None = None, **told: Scalar) -> dict[str, object]:
        """What the client answers; ``about`` is what the server tells of this round, by FedALIGN's keys."""
        under_name = {f"fedalign.{key}": value for key, value in (about or {}).items()}
        return metrics_of(self("train", told={**under_name, **told}))

    def decision(self, about: dict[str, Scalar] | None = None, **told: Scalar) -> object:
        return self.train(about, **told)[keys.DECISION]

    def measured(self, key: str) -> float:
        """What the client answers to the survey."""
        value = metrics_of(self("evaluate", split=keys.TRAIN_SPLIT))[key]
        assert isinstance(value, float)
        return value


def test_a_priority_client_joins_whatever_the_model_is_like() -> None:
    assert Node(0).decision(TOO_LOW) == 1  # one of the run's first priority-clients
    assert Node(1, priority=True).decision(TOO_LOW) == 1  # its owner asked
    assert Node(1).decision(TOO_LOW) == 0


def test_the_servers_word_on_priority_goes_before_the_clients_own() -> None:
    granted = Node(1).train({**TOO_LOW, PRIORITY: 1})
    assert (granted[keys.DECISION], granted[PRIORITY]) == (1, 1)
    assert Node(0).decision({**TOO_LOW, PRIORITY: 0}) == 0
    assert Node(1, priority=True).decision({**TOO_LOW, PRIORITY: 0}) == 0
    assert Node(0).train()[PRIORITY] == 1
    assert Node(1).train()[PRIORITY] == 0


@pytest.mark.parametrize(
    ("asks", "granted", "told"), [(True, 0, 0), (False, 1, 1), (True, None, 1), (False, None, 0)]
)
def test_what_is_reported_of_priority(asks: bool, granted: int | None, told: int) -> None:
    assert Node(3, priority=asks).train({} if granted is None else {PRIORITY: granted})[PRIORITY] == told


def test_by_default_the_first_half_of_the_clients_ask_for_priority() -> None:
    config = changed(CONFIG, fedalign__priority_clients=-1)
    assert [Node(k, config).train()[PRIORITY] for k in range(4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("epsilon", [0.0, 0.25, -0.25])
def test_another_client_joins_up_to_the_very_bound(epsilon: float) -> None:
    node = Node()
    loss = node.measured(keys.LOSS)
    bound = loss - epsilon
    assert bound + epsilon == loss  # no rounding in between, so that the bound itself is met
    below = math.nextafter(bound, -math.inf)
    assert below + epsilon < loss
    assert node.decision({GLOBAL_LOSS: bound, EPSILON: epsilon}) == 1
    assert node.decision({GLOBAL_LOSS: below, EPSILON: epsilon}) == 0
    assert node.decision({GLOBAL_LOSS: bound + 100, EPSILON: epsilon}) == 1  # refusing it is the server's


def test_the_error_is_compared_instead_of_the_loss() -> None:
    node = Node(config=ON_ERROR)
    error = 1 - node.measured("accuracy")
    joined = node.train({EPSILON: 0.0, GLOBAL_LOSS: error})
    assert (joined[keys.DECISION], joined[keys.LOSS]) == (1, error)
    assert node.decision({EPSILON: 0.0, GLOBAL_LOSS: math.nextafter(error, 0)}) == 0
    assert node.measured(keys.LOSS) > 1  # by its loss it would have been silent


def test_without_an_f_every_client_joins() -> None:
    assert Node().decision() == 1
    assert Node().decision({EPSILON: -5.0}) == 1


def test_a_mandatory_round_changes_nothing() -> None:
    assert Node().decision(TOO_LOW, mandatory=1) == 0


def test_the_reported_loss_is_that_of_the_model_that_was_sent_in_evaluation_mode() -> None:
    INITIAL.eval()
    data = TASK.load(1).train
    with torch.no_grad():
        expected = TASK.loss(INITIAL(data.x), data.y).item()
    node = Node()
    reported = node.train()
    assert reported == {
        keys.NUM_EXAMPLES: len(data),
        keys.DECISION: 1,
        keys.LOSS: pytest.approx(expected, rel=1e-5),
        PRIORITY: 0,
    }
    assert reported[keys.LOSS] == node.measured(keys.LOSS)
    assert node.train(**{"learning-rate": 1.0, "local-steps": 50})[keys.LOSS] == reported[keys.LOSS]


def test_a_silent_reply_says_nothing_of_the_loss_and_carries_no_model() -> None:
    content = Node()("train", told={f"fedalign.{key}": value for key, value in TOO_LOW.items()})
    assert metrics_of(content) == {
        keys.NUM_EXAMPLES: len(TASK.load(1).train),
        keys.DECISION: 0,
    }
    assert not any(isinstance(record, ArrayRecord) for record in content.values())
    assert content_size(content) < 2000


@pytest.mark.parametrize("node", [{"report-loss": False}, {"config": changed(CONFIG, report_loss=False)}])
def test_a_client_that_reports_no_loss_declines_the_run(node: dict[str, Scalar]) -> None:
    told: dict[str, Scalar] = {keys.NEEDS_LOSS: 1}
    assert Node()("query", told=told)
    with pytest.raises(ConfigError, match="report-loss = False is not allowed in this run") as error:
        Node(**node)("query", told=told)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="report-loss = False"):
        Node(**node)("train")  # type: ignore[arg-type]
    assert Node(**node)("query", told={keys.NEEDS_LOSS: 0})  # type: ignore[arg-type]


# -- the policy itself -----------------------------------------------------------------------------------


def situation(measure: float, f: float | None, epsilon: float, **known: object) -> Situation:
    told: dict[str, Scalar] = {MATCH_ON: "loss", EPSILON: epsilon} | ({} if f is None else {GLOBAL_LOSS: f})
    return Situation(evaluation=Evaluation(measure, math.nan), told=told, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measure", "global_loss", "epsilon", "decision"),
    [
        (1.25, 1.0, 0.25, Decision.JOINED),
        (math.nextafter(1.25, 2), 1.0, 0.25, Decision.SAT_OUT),
        (0.9, 1.0, -0.25, Decision.SAT_OUT),
        (9.0, 1.0, math.inf, Decision.JOINED),
        (9.0, None, 0.25, Decision.JOINED),  # nothing to compare with
        (math.nan, 1.0, 0.25, Decision.SAT_OUT),
    ],
)
def test_a_client_matches_up_to_epsilon_above_f(
    measure: float, global_loss: float | None, epsilon: float, decision: Decision
) -> None:
    known = {"requirement": 0.2, "met": True, "mandatory": True}  # which mean nothing here
    assert Match().decide(situation(measure, global_loss, epsilon, **known)) is decision


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_client_and_the_server_apply_the_same_condition(local: float, f: float, epsilon: float) -> None:
    now = situation(local, f, epsilon)
    assert (Match().decide(now) is Decision.JOINED) == joins(local, f, epsilon)
    assert Match().decide(dataclasses.replace(now, priority=True)) is Decision.JOINED
    assert Match().decide(situation(local, None, epsilon)) is Decision.JOINED


def test_mandatory_rounds_mean_nothing_to_it() -> None:
    assert (Match.mandatory, Match.needs_loss, Match.can_leave) == (False, True, False)
