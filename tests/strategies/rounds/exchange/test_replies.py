"""What the server believes: the bounds of `num-examples`, and a new model that is not finite."""

import re
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import FedAvg, RoundRecord
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.replies import read_evaluate, read_roll_call, read_train
from strategies.rounds.reply import Refused
from strategies.rounds.round import Reply
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, Watch, model, run, values_of

MOST = 10**12


def reply(count: float) -> Message:
    """A reply that would do for every kind of message, but for its claim."""
    MemoryGrid()
    metrics = MetricRecord({keys.NUM_EXAMPLES: count, keys.DECISION: 1})
    info = ConfigRecord({keys.CLIENT_ID: "a"})
    content = RecordDict({keys.METRICS: metrics, keys.INFO: info, keys.ARRAYS: model(1)})
    return Message(content, reply_to=Message(RecordDict(), 10, "train"))


train = partial(read_train, Member("a", 10))


@pytest.mark.parametrize("read", [train, read_evaluate, read_roll_call])
@pytest.mark.parametrize("count", [0, -1, 1.5, MOST + 1, 1e300, float("inf"), float("nan")])
def test_a_number_of_examples_that_cannot_be_is_refused(read: Callable[[Message], object], count: float) -> None:
    line = rf"^num-examples = {re.escape(str(float(count)))} is not (allowed: a whole number|a finite number)"
    with pytest.raises(Refused, match=line) as error:
        read(reply(count))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [1, 7, 7.0, MOST, float(MOST)])
def test_a_number_of_examples_that_can_be_is_a_whole_number(count: float) -> None:
    for found in (train(reply(count)).num_examples, read_roll_call(reply(count)).num_examples):
        assert isinstance(found, int)
        assert found == count
    assert read_evaluate(reply(count))[keys.NUM_EXAMPLES] == count


@pytest.mark.parametrize("read", [lambda message: train(message).metrics, partial(read_evaluate, others=["last"])])
@pytest.mark.parametrize(("told", "most"), [([1] * 1000, 32), (0.5, 1000)])
def test_of_what_nobody_has_named_no_more_is_kept_than_is_bounded(
    read: Callable[[Message], Mapping[str, object]], told: float | list[int], most: int
) -> None:
    """A megabyte of small lists becomes twenty in memory, for each client until its round is over."""
    many = {f"m{place}": told for place in range(2 * most)}
    ours = {keys.LOSS: 1.0, "accuracy": 0.5, "last": 0.25}
    sent = reply(7)
    sent.content[keys.METRICS] = MetricRecord({**many, **ours, keys.NUM_EXAMPLES: 7})
    kept = read(sent)
    assert most <= len(kept) <= most + 4
    assert kept[keys.LOSS] == 1.0
    assert "m0" in kept


def test_the_tasks_own_metrics_are_all_kept() -> None:
    sent, names = reply(7), [f"recall-{place}" for place in range(1500)]
    sent.content[keys.METRICS] = MetricRecord({**dict.fromkeys(names, 0.5), keys.NUM_EXAMPLES: 7})
    assert read_evaluate(sent, others=names).keys() == {*names, keys.NUM_EXAMPLES}


def test_the_largest_claim_does_not_overflow_the_sum() -> None:
    # Two weights of 1e12 on values of 1e26: the sum is 2e38, which float32 holds (3.4e38).
    clients = {10 + k: Volunteer(f"c{k}", local=1e26, examples=MOST) for k in range(2)}
    _, watch = run(FedAvg(), MemoryGrid(clients), 1)
    assert watch.records[0].count("joined") == 2
    assert watch.models[0] == pytest.approx([1e26], rel=1e-6)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_new_model_that_is_not_finite_is_kept_out_and_the_run_goes_on() -> None:
    # Each model of round 2 is finite, their sum is not: 3e38 + 3e38 > 3.4e38, the largest float32.
    clients = {10 + k: Volunteer(f"c{k}") for k in range(2)}
    grid = MemoryGrid(clients)

    def grow(local: float) -> None:
        for client in clients.values():
            client.local = local

    watch = Watch(before={2: lambda: grow(3e38), 3: lambda: grow(1.0)})
    result, watch = run(FedAvg(), grid, 3, watch)
    assert watch.models == [[1.0], [1.0], [2.0]]
    assert values_of(result.arrays) == [2.0]
    assert [r.metrics.get("not_finite") for r in watch.records] == [None, 1.0, None]
    assert [r.as_line().get("not_finite") for r in watch.records] == [None, 1.0, None]
    assert [r.count("joined") for r in watch.records] == [2, 2, 2]
    sent = [values_of(m.content.array_records[keys.ARRAYS]) for m in grid.sent("evaluate", 2)]
    assert sent == [[1.0], [1.0]], "the old model is the one that is evaluated"


@pytest.mark.filterwarnings("ignore:overflow")
def test_flowers_own_method_returns_no_model_that_is_not_finite() -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", local=3e38) for k in range(2)})
    strategy = FedAvg()
    replies = grid.send_and_receive(strategy.configure_train(1, model(0), ConfigRecord(), grid))
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is None
    assert metrics is not None
    assert (metrics["joined"], metrics["not_finite"]) == (2, 1.0)


def test_the_text_of_a_clients_error_is_one_line_of_the_log() -> None:
    message = Message(RecordDict(), 10, "train")
    for text, line in (
        ("first\nsecond", "first second"),
        ("e" * 9000, "e" * 497 + "..."),
        ("\x1b[31mred", "?[31mred"),
        (" \n", "error code 7"),
    ):
        with pytest.raises(Refused) as error:
            train(Message(Error(7, text), reply_to=message))
        assert str(error.value) == line


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_is_left_out(weight: float) -> None:
    class Weighs(FedAvg):
        def weight(self, reply: Reply) -> float:
            return weight if reply.member.client_id == "a" else 1.0

    _, watch = run(Weighs(), MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")}), 1)
    assert watch.records[0].failures == {"a": f"weight = {weight} is not allowed: a finite number, at least 0"}
    assert watch.records[0].decisions["b"] == "joined"


def test_the_model_stays_where_no_weight_counts() -> None:
    class Weighs(FedAvg):
        def weight(self, reply: Reply) -> float:
            return 0.0

    _, watch = run(Weighs(), MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")}), 2)
    assert watch.models == [[0.0], [0.0]]


def test_a_strategy_does_not_carry_under_the_rounds_own_name() -> None:
    class Carries(FedAvg):
        def carried(self) -> dict[str, object]:
            return {"volunteers": {"mine": 1}}

    with pytest.raises(ConfigError, match=r"^strategy carries carries 'volunteers', which is the rounds' own"):
        rounds_of(Carries()).state()


class Odd(dict[str, object]):
    """Content that raises where it is read, as no record of Flower's does today."""

    def get(self, key: str, default: object = None) -> object:
        raise OverflowError(f"{key}\nand more")


@pytest.mark.parametrize("read", [train, read_evaluate, read_roll_call])
def test_whatever_is_raised_while_a_reply_is_read_refuses_it(read: Callable[[Message], object]) -> None:
    odd = reply(1)
    odd.__dict__["_content"] = Odd()
    with pytest.raises(Refused, match=r"^its reply cannot be used: OverflowError: (metrics|info) and more$"):
        read(odd)


def test_a_reason_is_one_line_of_500_characters_at_most() -> None:
    record = RoundRecord(1)
    record.fail("a", "one\n\x1b[31mtwo\t" + "x" * 5_000_000)
    assert record.failures["a"].startswith("one ?[31mtwo xxx")
    assert len(record.failures["a"]) == 500
    record.add_failure("a", "survey: late")
    assert len(record.failures["a"]) == 500
