"""What evaluation replies say together: means over those who reported, seen and unseen apart, always finite."""

import math
import sys
from fractions import Fraction

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import example, given
from hypothesis import strategies as st

from fedappeal.flower.messages import be_sender
from fedappeal.protocol import keys
from fedappeal.protocol.metric import Metric
from strategies import FedAvg
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.replies import read_evaluate
from strategies.rounds.reply import Refused
from strategies.rounds.summary import incomplete, summarise
from tests.grid import MemoryGrid, Volunteer, model

LARGEST = sys.float_info.max


def losses(values: list[float]) -> float:
    """Mean of the losses that a number of clients report."""
    said = [(Member(str(k), k), MetricRecord({keys.LOSS: value})) for k, value in enumerate(values)]
    return summarise(said)["loss"]


def test_means_by_hand() -> None:
    a, b, c = Member("a", 1), Member("b", 2), Member("c", 3, role=keys.UNSEEN)
    told = [
        (a, MetricRecord({keys.LOSS: 1.0, "accuracy": 0.5, keys.APPEALED: 1})),
        (b, MetricRecord({keys.LOSS: 4.0, keys.APPEALED: 0})),
        (c, MetricRecord({keys.LOSS: 7.0})),
    ]
    found = summarise(told)
    assert {key: found[key] for key in found if not key.endswith("t_accuracy") and "decile" not in key} == {
        "loss": 2.5,
        "accuracy": 0.5,
        "gm_appeal": 0.5,
        "unseen_loss": 7.0,
    }
    assert summarise([]) == {}


def test_a_metric_that_is_no_number_is_missing_for_its_client_and_its_loss_counts() -> None:
    auc, others = Metric("auc"), ("f1",)
    nan, inf = math.nan, math.inf
    answers = [
        {keys.LOSS: 1.0, "auc": 0.5, "f1": nan},
        {keys.LOSS: 2.0, "auc": inf, "f1": 0.25, "preferred-auc": nan},
        {keys.LOSS: 3.0, "auc": 0.7, "f1": 0.75},
    ]

    be_sender(1, 1, 1)

    def read(answer: dict[str, float]) -> dict[str, float]:
        content = RecordDict({keys.METRICS: MetricRecord({keys.NUM_EXAMPLES: 4, **answer})})
        return read_evaluate(Message(content, reply_to=Message(RecordDict(), 1, "evaluate")), auc)

    told = [(Member(str(k), k), read(answer)) for k, answer in enumerate(answers)]
    found = summarise(told, auc, others)
    assert (found["loss"], found["auc"], found["f1"]) == pytest.approx((2.0, 0.6, 0.5))
    assert incomplete(told, auc, others) == {"auc_clients": 2, "f1_clients": 2}
    assert incomplete(told[2:], auc, others) == {}
    for wrong in ({keys.LOSS: nan, "auc": 0.5}, {"auc": nan}, {keys.LOSS: 1.0, "auc": 2.0}):
        with pytest.raises(Refused):
            read(wrong)


@pytest.mark.parametrize(("clients", "worst"), [(1, 0.0), (10, 0.0), (11, 0.005), (30, 0.01), (31, 0.015)])
def test_the_worst_decile_by_hand(clients: int, worst: float) -> None:
    """Accuracies 0, 0.01, 0.02, ... in a mixed order: the mean of the lowest tenth of them, rounded up."""
    order = [(7 * k) % clients for k in range(clients)]
    told = [(Member(str(k), k), MetricRecord({"accuracy": k / 100})) for k in order]
    found = summarise(told)
    assert found["worst_decile_accuracy"] == pytest.approx(worst)
    assert (found["lowest_accuracy"], found["highest_accuracy"]) == (0.0, (clients - 1) / 100)
    unseen = [(Member(m.client_id, m.node_id, role=keys.UNSEEN), said) for m, said in told]
    assert summarise(unseen)["unseen_worst_decile_accuracy"] == found["worst_decile_accuracy"]
    assert "worst_decile_accuracy" not in summarise(unseen)


@pytest.mark.parametrize("clients", [1, 3, 7, 10, 49])
def test_a_share_is_exact(clients: int) -> None:
    for ones in (0, clients // 2, clients):
        assert losses([1.0] * ones + [0.0] * (clients - ones)) == ones / clients  # not so, were each divided first


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
@example([LARGEST] * 3)
@example([LARGEST, LARGEST, -LARGEST, -LARGEST])
@example([-LARGEST] * 7)
def test_the_mean_of_finite_claims_is_finite(values: list[float]) -> None:
    exact = sum(map(Fraction, values)) / len(values)
    room = 1e-14 * max(map(abs, values))
    assert losses(values) == pytest.approx(float(exact), rel=1e-14, abs=room)


def test_absurd_claims_through_flowers_messages() -> None:
    grid = MemoryGrid({10 + k: Volunteer(str(k), evaluation={keys.LOSS: 1.5e308}) for k in range(4)})
    strategy = FedAvg()
    messages = strategy.configure_evaluate(1, model(0), ConfigRecord(), grid)
    metrics = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert metrics is not None
    assert dict(metrics) == {"loss": 1.5e308}
    assert math.isinf(4 * 1.5e308)
