"""FedALIGN at the client: who joins, by which loss, and what a joined reply says (Algorithm 1, the client's side)."""

import dataclasses
import math

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import client.app
import client.registry
from client.models import arrays_of
from client.participation import Situation, match
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig, Scalar
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import Layout
from fedappeal.tasks import load_task
from strategies.exchange import content_size
from strategies.fedalign import joins

pytestmark = pytest.mark.usefixtures("fresh")

CONFIG = RunConfig(strategy="fedalign", clients=4, priority_clients=1, warmup_steps=2, batch_size=16, local_steps=4)
TASK = load_task(CONFIG.task_settings())
INITIAL = TASK.initial_model(0)
LAYOUT = Layout.of(arrays_of(INITIAL))
REPORT = f"{keys.LOSS},{keys.PRIORITY}"
TOO_LOW = {keys.GLOBAL_LOSS: -100.0, keys.EPSILON: 1.0}


class Node:
    """One client that messages are handed to; of the four, only the one with partition-id 0 asks for priority."""

    def __init__(self, partition_id: int = 1, config: RunConfig = CONFIG, **node: Scalar) -> None:
        settings: dict[str, Scalar] = {"partition-id": partition_id, "device": "cpu", **node}
        self.context = Context(7, 3, settings, RecordDict(), config.as_config())

    def __call__(self, kind: str, **told: Scalar) -> RecordDict:
        values = {keys.RUN_KEY: "k", keys.SERVER_ROUND: 1, keys.MATCH_ON: "loss", keys.REPORT: REPORT, **told}
        content = RecordDict({keys.ARRAYS: LAYOUT.pack(arrays_of(INITIAL)), keys.CONFIG: ConfigRecord(values)})
        return client.app.app(Message(content, 3, kind), self.context).content

    def metrics(self, kind: str = "train", **told: Scalar) -> dict[str, object]:
        return dict(self(kind, **told).metric_records[keys.METRICS])

    def decision(self, **told: Scalar) -> object:
        return self.metrics(**told)[keys.DECISION]

    def measured(self, key: str) -> float:
        """What the client answers to the survey."""
        value = self.metrics("evaluate", **{keys.SPLIT: keys.TRAIN_SPLIT})[key]
        assert isinstance(value, float)
        return value


def test_a_priority_client_joins_whatever_the_model_is_like() -> None:
    assert Node(0).decision(**TOO_LOW) == 1  # one of the run's first priority-clients
    assert Node(1, priority=True).decision(**TOO_LOW) == 1  # its owner asked
    assert Node(1).decision(**TOO_LOW) == 0


def test_the_servers_word_on_priority_goes_before_the_clients_own() -> None:
    granted = Node(1).metrics(**TOO_LOW, **{keys.PRIORITY: 1})
    assert (granted[keys.DECISION], granted[keys.PRIORITY]) == (1, 1)
    assert Node(0).decision(**TOO_LOW, **{keys.PRIORITY: 0}) == 0
    assert Node(1, priority=True).decision(**TOO_LOW, **{keys.PRIORITY: 0}) == 0
    assert Node(0).metrics()[keys.PRIORITY] == 1
    assert Node(1).metrics()[keys.PRIORITY] == 0


@pytest.mark.parametrize("epsilon", [0.0, 0.25, -0.25])
def test_another_client_joins_up_to_the_very_bound(epsilon: float) -> None:
    node = Node()
    loss = node.measured(keys.LOSS)
    bound = loss - epsilon
    assert bound + epsilon == loss  # no rounding in between, so that the bound itself is met
    below = math.nextafter(bound, -math.inf)
    assert below + epsilon < loss
    assert node.decision(**{keys.GLOBAL_LOSS: bound, keys.EPSILON: epsilon}) == 1
    assert node.decision(**{keys.GLOBAL_LOSS: below, keys.EPSILON: epsilon}) == 0
    assert node.decision(**{keys.GLOBAL_LOSS: bound + 100, keys.EPSILON: epsilon}) == 1  # refusing it is the server's


def test_the_error_is_compared_instead_of_the_loss() -> None:
    node = Node()
    error = 1 - node.measured(keys.ACCURACY)
    told: dict[str, Scalar] = {keys.MATCH_ON: "error", keys.EPSILON: 0.0}
    joined = node.metrics(**told, **{keys.GLOBAL_LOSS: error})
    assert (joined[keys.DECISION], joined[keys.LOSS]) == (1, error)
    assert node.decision(**told, **{keys.GLOBAL_LOSS: math.nextafter(error, 0)}) == 0
    assert node.measured(keys.LOSS) > 1  # by its loss it would have been silent


def test_without_an_f_everybody_joins() -> None:
    assert Node().decision() == 1
    assert Node().decision(**{keys.EPSILON: -5.0}) == 1


def test_a_mandatory_round_changes_nothing() -> None:
    assert Node().decision(**TOO_LOW, **{keys.MANDATORY: 1}) == 0


def test_the_reported_loss_is_that_of_the_model_that_was_sent_in_evaluation_mode() -> None:
    INITIAL.eval()
    data = TASK.load(1).train
    with torch.no_grad():
        expected = TASK.loss(INITIAL(data.x), data.y).item()
    node = Node()
    reported = node.metrics()
    assert reported == {
        keys.NUM_EXAMPLES: len(data),
        keys.DECISION: 1,
        keys.LOSS: pytest.approx(expected, rel=1e-5),
        keys.PRIORITY: 0,
    }
    assert reported[keys.LOSS] == node.measured(keys.LOSS)
    assert node.metrics(**{"learning-rate": 1.0, "local-steps": 50})[keys.LOSS] == reported[keys.LOSS]


def test_a_silent_reply_says_nothing_of_the_loss_and_carries_no_model() -> None:
    content = Node()("train", **TOO_LOW)
    assert dict(content.metric_records[keys.METRICS]) == {
        keys.NUM_EXAMPLES: len(TASK.load(1).train),
        keys.DECISION: 0,
    }
    assert not any(isinstance(record, ArrayRecord) for record in content.values())
    assert content_size(content) < 2000


@pytest.mark.parametrize(
    "node", [{"report-loss": False}, {"config": CONFIG.model_copy(update={"report_loss": False})}]
)
def test_a_client_that_reports_no_loss_declines_the_run(node: dict[str, Scalar]) -> None:
    told: dict[str, Scalar] = {keys.NEEDS_LOSS: 1}
    assert Node()("query", **told)
    with pytest.raises(ConfigError, match="report-loss = False is not allowed in this run") as error:
        Node(**node)("query", **told)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="report-loss = False"):
        Node(**node)("train")  # type: ignore[arg-type]
    assert Node(**node)("query", **{keys.NEEDS_LOSS: 0})  # type: ignore[arg-type]


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_client_and_the_server_apply_the_same_condition(local: float, f: float, epsilon: float) -> None:
    situation = Situation(math.nan, math.nan, mandatory=False, measure=local, global_loss=f, epsilon=epsilon)
    assert (match(situation) is Decision.JOINED) == joins(local, f, epsilon)
    assert match(dataclasses.replace(situation, priority=True)) is Decision.JOINED
    assert match(dataclasses.replace(situation, global_loss=None)) is Decision.JOINED
