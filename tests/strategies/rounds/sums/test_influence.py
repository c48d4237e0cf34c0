"""Bounds on one client's influence: cuts computed by hand, and by a second formula."""

import contextlib
import copy
import math
import random
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.protocol import keys
from fedappeal.protocol.keys import Decision
from fedappeal.protocol.packing import content_bytes
from strategies import AdaGD, FedAdam, FedALIGN, FedAU, FedAvg, MaxFL, QFedAvg, Scaffold
from strategies.fedalign.alignment import Statement, without_outliers
from strategies.fedalign.strategy import PRIORITY
from strategies.mwfed import loads
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.reply import Refused
from strategies.rounds.round import Reply, Round, RoundRecord
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import rounds_of
from strategies.rounds.sums.influence import (
    HELD,
    KEPT,
    Bounds,
    Direction,
    Medians,
    capped_values,
    log_norm,
    shortened_model,
)
from strategies.scaffold import CONTROL_DELTA
from tests.grid import MemoryGrid, Volunteer, Watch, model, opened, run, values_of

SENT = model(1.0, 1.0)


def reply(client: str, *update: float, examples: int = 2) -> Reply:
    arrays = model(*(1.0 + value for value in update))
    return Reply(Member(client, 7), Decision.JOINED, examples, {}, arrays)


def bounds(medians: Medians | None = None, direction: Direction | None = None, norm: float = 1.5) -> Bounds:
    directions = {keys.ARRAYS: direction or Direction()}
    return Bounds(medians or Medians(), directions, SENT, SENT, weight=3.0, norm=norm)


def sent(bounds: Bounds, *replies: Reply) -> dict[str, Reply]:
    """What counts of replies that come in this order, by client; without replies that are left out."""
    found = [each for reply in replies for each in bounds.admit(reply, math.log(reply.num_examples))]
    counted = {}
    for each in [*found, *bounds.release()]:
        with contextlib.suppress(Refused):
            counted[each.reply.member.client_id] = bounds.counted_reply(each)
    return counted


def update_of(reply: Reply) -> list[float]:
    return [pytest.approx(value - 1.0, abs=1e-6) for value in values_of(reply.arrays)]


def test_what_is_beyond_the_bounds_counts_as_the_median() -> None:
    own = bounds()
    counted = sent(
        own,
        reply("mallory", 6.0, 8.0, examples=100),
        *(reply(name, 0.0, 5.0) for name in ("a", "b", "c")),
        reply("d", 4.2, 5.6),  # norm 7: less than 1.5 times 5, and shortened to 5 all the same
        reply("e", 0.3, 0.4),
    )
    # Lower medians: weight 2, norm 5. 100 > 3 * 2 counts as 2; 10 > 1.5 * 5 as 5, in its own direction.
    assert counted["mallory"].counts == pytest.approx(0.02)
    assert update_of(counted["mallory"]) == [3.0, 4.0]
    assert own.cut == {"mallory"}
    assert all(counted[name].counts == 1.0 for name in "abcd")
    assert update_of(counted["d"]) == [3.0, 4.0]
    assert update_of(counted["e"]) == [0.3, 0.4]


def test_an_update_far_beyond_the_bounds_counts_for_nothing() -> None:
    own = bounds()
    counted = sent(
        own,
        *(reply(name, 0.0, 5.0) for name in ("a", "b")),
        reply("near", 0.0, 14.9),  # the limit is 2 * 1.5 * 5 = 15
        reply("far", 0.0, 15.1),
    )
    assert sorted(counted) == ["a", "b", "near"]
    assert update_of(counted["near"]) == [0.0, 5.0]
    assert own.cut == {"near", "far"}


def test_a_client_whose_update_is_left_out_failed_and_its_weight_does_not_count() -> None:
    clients = {10 + k: Volunteer(f"c{k}", local=1.0 + k / 10) for k in range(5)}
    clients[15] = Volunteer("far", local=1e6, examples=10**9)
    result, watch = run(FedAvg(influence="bounded", evaluate_every=0), MemoryGrid(dict(clients)), 1)
    assert values_of(result.arrays) == [pytest.approx(1.14)], "1.0, 1.1, and three that count as 1.2"
    assert watch.records[0].failures["far"].startswith("its update (arrays) is longer than 4 times")
    assert watch.records[0].metrics["bounded"] == 1.0


@pytest.mark.parametrize(("seen", "unseen", "bounded"), [(2, 1, None), (3, 0, 1.0), (3, 1, 1.0)])
def test_clients_that_never_train_are_no_measure_of_the_others(seen: int, unseen: int, bounded: float | None) -> None:
    """Of two clients that train neither is cut, whoever evaluates besides; of three, the one that is far is."""
    far = {10: Volunteer("far", local=9.0)}
    near = {11 + k: Volunteer(f"near-{k}", local=3.0) for k in range(seen - 1)}
    others = {20 + k: Volunteer(f"unseen-{k}", role=keys.UNSEEN) for k in range(unseen)}
    strategy = FedAvg(influence="bounded", evaluate_every=0, min_clients=seen + unseen)
    result, watch = run(strategy, MemoryGrid({**far, **near, **others}), 1)
    assert watch.records[0].metrics.get("bounded") == bounded
    assert values_of(result.arrays) == [6.0 if bounded is None else pytest.approx(3.0)]


def test_a_heavy_client_does_not_pull_farther_than_the_median() -> None:
    own = bounds()
    others = [reply(name, 0.0, 5.0) for name in ("a", "b", "c", "d", "e")]
    heavy = [
        reply("long", 0.0, 6.0, examples=4),
        reply("short", 0.0, 4.0, examples=4),
        reply("tiny", 0.3, 0.4, examples=6),
    ]
    counted = sent(own, *others, *heavy)
    # Lower medians: weight 2, norm 5. 4 counts as 2 at full length, as 2.5 at four fifths; 6 * 0.5 is below 2 * 5.
    assert [counted[name].counts for name in ("long", "short", "tiny")] == [0.5, pytest.approx(2.5 / 4), 1.0]
    assert [update_of(counted[name]) for name in ("long", "short", "tiny")] == [[0.0, 5.0], [0.0, 4.0], [0.3, 0.4]]
    assert all(counted[name].counts == 1.0 for name in "abcde")
    assert own.cut == set(), "within the limits"


def test_the_longest_record_decides_what_the_weight_counts() -> None:
    own, record = bounds(), "change"
    own.directions = {keys.ARRAYS: Direction(), record: Direction()}
    replies = [replace(reply(name, 0.0, 5.0), records={record: model(2.0, 0.0)}) for name in ("a", "b", "c")]
    heavy = replace(reply("heavy", 0.0, 1.0, examples=4), records={record: model(0.0, 1.6)})
    counted = sent(own, *replies, heavy)["heavy"]
    # A fifth of the median model's length, but four fifths of the change's: 2 / 0.8.
    assert counted.counts == pytest.approx(2.5 / 4)
    assert values_of(counted.records[record]) == pytest.approx([0.0, 1.6])


def test_the_first_replies_wait_until_there_is_a_cohort() -> None:
    own = bounds()
    assert own.admit(reply("a", 0.0, 5.0), 0.0) == [] == own.admit(reply("b", 0.0, 5.0), 0.0)
    assert own.admit(reply("c", 0.0, 5.0), 0.0) == []
    assert [each.reply.member.client_id for each in own.release()] == ["a", "b", "c"]
    assert own.release() == []


@pytest.mark.parametrize("order", ["fast", "saft", "tsaf"])
def test_the_order_in_which_replies_come_changes_nothing(order: str) -> None:
    medians = Medians()
    for name in "xyz":
        medians.note(name, {"weight": 0.0, keys.ARRAYS: math.log(5.0)})
    own, norms = bounds(medians), {"f": 5.0, "a": 2.0, "s": 9.0, "t": 11.0}
    ready = [sent for name in order for sent in own.admit(reply(name, norms[name], 0.0), 0.0)]
    found = {sent.reply.member.client_id: own.counted_reply(sent) for sent in [*ready, *own.release()]}
    assert sorted(found) == ["a", "f", "s", "t"]
    # The median of 2, 5, 5, 5, 5, 9, 11 is 5, and the limit 1.5 times that.
    assert own.cut == {"s", "t"}
    assert [values_of(found[name].arrays) for name in "st"] == [pytest.approx([6.0, 1.0])] * 2


@pytest.mark.parametrize("known", [False, True])
def test_the_order_changes_nothing_where_many_wait(known: bool) -> None:
    # In a first round all wait; later those that are too long, here more than the medians are of otherwise.
    draws = random.Random(0)
    lengths = {f"c{k:02d}": draws.uniform(0.5, 3.0) for k in range(KEPT + 20)}
    counted, closed = [], []
    for seed in (1, 2):
        medians, order = Medians(), list(lengths)
        for name in "xyz" if known else "":
            medians.note(name, {"weight": 0.0, keys.ARRAYS: math.log(0.1)})
        random.Random(seed).shuffle(order)
        own = bounds(medians)
        own.leaves_out = False
        counted.append(
            {k: values_of(v.arrays) for k, v in sent(own, *(reply(k, lengths[k], 0.0) for k in order)).items()}
        )
        own.close()
        closed.append(medians)
    assert counted[0] == counted[1]
    assert closed[0] == closed[1]
    known_now = [*lengths.values(), *([0.1] * 3 if known else [])]
    longest = max(first - 1.0 for first, _ in counted[0].values())
    assert longest == pytest.approx(median_low(known_now), rel=1e-6)


def test_late_names_do_not_choose_the_median() -> None:
    own = bounds(medians := Medians())
    honest = [reply(f"a{k:03d}", 1.0, 0.0) for k in range(2 * KEPT)]
    sent(own, *honest, *(reply(f"z{k:03d}", 50.0, 0.0) for k in range(KEPT)))
    own.close()
    assert medians.of(keys.ARRAYS) == pytest.approx(0.0, abs=1e-6)
    for number in range(5):  # smaller rounds, with one of the late names each
        own = bounds(medians)
        sent(own, *(reply(f"b{number}{k}", 1.0, 0.0) for k in range(9)), reply(f"z{number:03d}", 50.0, 0.0))
        own.close()
        assert medians.of(keys.ARRAYS) == pytest.approx(0.0, abs=1e-6)


def test_whole_rounds_are_forgotten_and_state_is_carried() -> None:
    medians = Medians()
    for number, clients in enumerate((200, 30, 30, 30)):
        for k in range(clients):
            medians.note(f"{number}/{k}", {"weight": float(number)})
        medians.end_round()
        again = Medians()
        again.restore(medians.state())
        assert again.state() == medians.state()
        assert again.of("weight") == medians.of("weight") == (0.0, 0.0, 1.0, 2.0)[number]
        assert len(medians.latest["weight"]) == KEPT
    earlier = {key: value for key, value in medians.state().items() if not key.endswith(("/rounds", "round"))}
    again.restore(earlier)
    assert again.of("weight") == 2.0


def test_values_grow_old_in_rounds_without_a_joiner_over_a_resume_too() -> None:
    medians, again = Medians(), Medians()
    for joined in ("abc", "", "", "", "", "def", "", "", ""):
        for client in joined:
            medians.note(client, {"weight": float(joined == "def")})
        medians.end_round()
    again.restore(medians.state())
    for _ in range(3):
        medians.end_round()
        again.end_round()
        assert again.latest == medians.latest
    assert medians.of("weight") == 1.0


@pytest.mark.parametrize(("many", "few", "rounds"), [(100, 40, 1), (30, 12, 10), (1000, 63, 1)])
def test_clients_that_went_quiet_do_not_hold_the_median(many: int, few: int, rounds: int) -> None:
    medians = Medians()
    for k in range(many):
        medians.note(f"c{k}", {"weight": 1.0})
    for _ in range(1 + rounds):
        medians.end_round()
        for k in range(few):
            medians.note(f"c{k}", {"weight": 5.0})
    medians.end_round()
    assert medians.of("weight") == 5.0


def test_a_large_round_keeps_its_median() -> None:
    medians, draws = Medians(), random.Random(3)
    values = [draws.gauss(0.0, 1.0) for _ in range(5001)]
    for k, value in enumerate(values):
        medians.note(f"c{k}", {"weight": value})
    medians.end_round()
    assert len(medians.latest["weight"]) == KEPT
    ranks = sorted(values)
    assert ranks[2400] < medians.of("weight") < ranks[2600]


def test_one_that_cannot_be_measured_yet_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.rounds.sums.influence.HELD_BYTES", 0)
    own = bounds()
    early = [
        each
        for each in [reply("far", 0.0, 1e6), *(reply(f"still{k}", 0.0, 0.0) for k in range(HELD))]
        for each in own.admit(each, 0.0)
    ]
    (far,) = early
    with pytest.raises(Refused, match="too few updates to compare"):
        own.counted_reply(far)


@pytest.mark.parametrize(("records", "metrics", "waiting"), [(1, {}, 6), (2, {}, 4), (1, {"a": [0.0] * 50}, 4)])
def test_as_many_wait_as_fit(
    monkeypatch: pytest.MonkeyPatch, records: int, metrics: dict[str, Any], waiting: int
) -> None:
    one = replace(reply("c", 0.0, 50.0), records={keys.ARRAYS + str(k): SENT for k in range(1, records)})
    monkeypatch.setattr("strategies.rounds.sums.influence.HELD_BYTES", 6 * content_bytes(one.arrays))
    own = bounds()
    for number in range(12):
        member = Member(f"c{number:02d}", 7)
        own.admit(replace(one, member=member, metrics=metrics), 0.0)
    assert len(own.release()) == waiting


def test_few_replies_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.rounds.sums.influence.HELD_BYTES", 0)
    medians = Medians()
    for name in "abcdefghi":
        medians.note(name, {"weight": 0.0, keys.ARRAYS: math.log(5.0)})
    own = bounds(medians)
    ready = [own.admit(reply(f"far{i}", 0.0, 50.0), 0.0) for i in range(HELD + 2)]
    assert [len(each) for each in ready] == [0] * HELD + [1, 1]
    assert len(own.release()) == HELD


def test_norms_that_rise_for_all_are_not_cut() -> None:
    medians = Medians()
    for name in "abcd":
        medians.note(name, {"weight": math.log(2.0), keys.ARRAYS: math.log(5.0)})
    own = bounds(medians)
    counted = sent(own, *(reply(name, 0.0, 50.0) for name in "abcd"))
    assert [update_of(counted[name]) for name in "abcd"] == [[0.0, 50.0]] * 4
    assert own.cut == set()


def test_a_client_has_one_value_in_the_medians_however_often_it_joins() -> None:
    medians = Medians()
    for number in range(20):
        own = bounds(medians)
        sent(own, reply("mallory", 0.0, 10.0**number), *(reply(name, 0.0, 5.0) for name in ("a", "b")))
        assert not own.leaves_alone(["mallory", "a", "b"], 0)
        own.close()
    assert medians.of(keys.ARRAYS) == pytest.approx(math.log(5.0))
    assert len(medians.latest[keys.ARRAYS]) == 3


def test_clients_that_were_cut_do_not_move_the_model_where_the_others_sat_out() -> None:
    medians = Medians()
    for name in "abcde":
        medians.note(name, {"weight": math.log(2.0), keys.ARRAYS: math.log(5.0)})

    def alone(update: float, *joined: str, others: int) -> bool:
        own = bounds(copy.deepcopy(medians))
        sent(own, *(reply(name, 0.0, update if name == "a" else 5.0) for name in joined))
        return own.leaves_alone(joined, others)

    assert alone(50.0, "a", others=4)
    assert alone(50.0, "a", "b", others=4)
    assert not alone(5.0, "a", others=4)  # not cut
    assert not alone(50.0, "a", "b", "c", others=4)  # three are a cohort
    assert not alone(50.0, "a", others=1)  # of two clients neither can be the other's measure


@pytest.mark.parametrize("strategy", [FedAU, FedAdam])
def test_a_strategy_does_not_remember_updates_that_do_not_count(strategy: type[FedAvg]) -> None:
    def in_rounds_1_and_3(told: ConfigRecord) -> int:
        return int(told[keys.SERVER_ROUND] != 2)

    clients = {10 + k: Volunteer(f"c{k}", decision=in_rounds_1_and_3) for k in range(1, 5)}
    clients[10] = Volunteer("c0", local=3.0)  # longer than two medians: cut each time
    own = strategy(influence="bounded", mandatory_rounds=0, evaluate_every=0)
    carried: list[str] = []
    before = {number: lambda: carried.append(repr(own.carried())) for number in (2, 3)}
    _, watch = run(own, MemoryGrid(dict(clients)), 3, Watch(before=before))
    assert [record.count("joined") for record in watch.records] == [5, 1, 5]
    assert [record.metrics["bounded"] for record in watch.records] == [1.0, 1.0, 1.0]
    assert [record.mandatory for record in watch.records] == [False, False, True], "as after a round without a joiner"
    assert watch.models[1] == watch.models[0] != watch.models[2]
    assert carried[0] == carried[1] != repr(own.carried())


@pytest.mark.parametrize(("said", "moves"), [(9.0, False), (1.0, True)])
def test_a_priority_client_that_was_cut_does_not_move_the_model_where_all_others_are_refused(
    said: float, moves: bool
) -> None:
    """FedALIGN refuses clients when a round ends: only then it shows that the cut client is alone."""
    others = {10 + k: Volunteer(f"c{k}", metrics={keys.LOSS: 1.0, PRIORITY: 0}) for k in range(1, 6)}
    mallory = Volunteer("c0", local=3.0, metrics={keys.LOSS: said, PRIORITY: 1}, evaluation={keys.LOSS: said})
    strategy = FedALIGN(influence="bounded", priority_ids="c0", epsilon=0.5, warmup_rounds=0, evaluate_every=0)
    _, watch = run(strategy, MemoryGrid({10: mallory, **others}), 1)
    (record,) = watch.records
    assert (record.count("joined"), record.count("refused")) == ((6, 0) if moves else (1, 5))
    assert record.metrics["bounded"] == 1.0
    assert (watch.models[0] != [0.0]) == moves
    assert (strategy.carried()["fedalign"]["updates"] == 1) == moves


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(0.01, 1e4)), min_size=4, max_size=9))
def test_cuts_by_a_second_formula(clients: list[tuple[int, float]]) -> None:
    own = bounds()
    for i, (weight, norm) in enumerate(clients):
        own._now.note(str(i), {"weight": math.log(weight), keys.ARRAYS: math.log(norm)})
    middle_weight, middle_norm = median_low(w for w, _ in clients), median_low(n for _, n in clients)
    for weight, norm in clients:
        found = own._factors({"weight": math.log(weight), keys.ARRAYS: math.log(norm)}, own._now)
        length = min(norm, middle_norm)
        counted = weight if weight <= 3.0 * middle_weight * (1 + 1e-9) else middle_weight
        counted = min(counted, middle_weight * middle_norm / length)
        assert found[keys.ARRAYS] * norm == pytest.approx(length, rel=1e-6)
        assert found["weight"] * weight == pytest.approx(counted, rel=1e-6)


def test_numbers_whose_squares_overflow_have_a_norm() -> None:
    huge = ArrayRecord({"w": Array(np.full(4, 1e30, dtype=np.float32))})
    assert log_norm(huge, None) == pytest.approx(math.log(2e30))
    largest = ArrayRecord({"w": Array(np.full(4, 1e300))})
    assert log_norm(largest, None) == math.inf
    zeros = ArrayRecord({"w": Array(np.zeros(4))})
    assert shortened_model(largest, zeros, 0.0)["w"].numpy().tolist() == [0.0] * 4
    assert log_norm(zeros, None) == -math.inf


def test_the_medians_are_in_the_state_and_old_values_are_forgotten() -> None:
    strategy = FedAvg(influence="bounded")
    for number in range(KEPT + 2):
        rounds_of(strategy).medians.note(f"c{number}", {"weight": float(number)})
        if number % 11 == 10:
            rounds_of(strategy).medians.end_round()
    kept = list(rounds_of(strategy).medians.latest["weight"])
    assert len(kept) == KEPT
    assert set(kept) > {f"c{number}" for number in range(11, KEPT + 2)}, "of the first round some"
    again = FedAvg(influence="bounded")
    rounds_of(again).restore(rounds_of(strategy).state())
    assert rounds_of(again).medians == rounds_of(strategy).medians
    assert "influence" not in rounds_of(FedAvg()).state()


def test_numbers_capped_by_hand() -> None:
    assert capped_values([4, 1, 100, 2], 3) == [4, 1, 6, 2]
    assert capped_values([], 3) == []


def test_maxfl_bounds_the_share_and_not_the_step() -> None:
    strategy = MaxFL(stabilizer=0.1)
    round = Round(model(0.0), Members(), RoundRecord(1))
    for name, claimed, counts in (("a", 0.05, 1.0), ("b", 0.25, 0.2)):
        own = Reply(Member(name, 1), Decision.JOINED, 1, {"appeal-weight": claimed}, model(8.0), counts=counts)
        strategy.add(round, own)
    # Both count 0.05; the step is that of Q = 0.3: 0.3 / (0.3 + 0.1) of the way to 8.
    assert values_of(strategy.update(round)) == pytest.approx([6.0])


def test_a_claim_of_priority_does_not_count_where_influence_is_bounded() -> None:
    claims = Member("mallory", 9, priority=True)
    bounded = SharedSettings(influence="bounded")

    def round(**setup: Any) -> Round:
        return Round(model(0.0), Members(), RoundRecord(1), **setup)

    assert FedALIGN().has_priority(round(), claims) is True
    assert FedALIGN().has_priority(round(shared=bounded), claims) is False
    assert FedALIGN().has_priority(round(shared=bounded, granted_nodes=frozenset({9})), claims) is True
    assert FedALIGN(priority_ids="alice").has_priority(round(shared=bounded), claims) is False


def test_a_priority_clients_loss_is_kept_near_the_others() -> None:
    said = [Statement(1.0, 10), Statement(2.0, 12), Statement(1e9, 10**12), Statement(-1e9, 11)]
    # Lower medians: loss 1, examples 11. With a factor 3 losses are in [-1, 3], examples at most 33.
    assert without_outliers(said, 3.0) == [(1.0, 10), (2.0, 12), (3.0, 33), (-1.0, 11)]


def test_a_loss_out_of_all_proportion_does_not_end_the_run() -> None:
    """Its weight is e^3546, that of the others is less than 1: the share that counts of it is 0 as a float."""
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", metrics={keys.LOSS: 1e308 if k == 0 else 0.5}) for k in range(4)})
    _, watch = run(QFedAvg(q=5.0, learning_rate=0.1, influence="bounded", evaluate_every=0), grid, 2)
    assert [record.count("joined") for record in watch.records] == [4, 4]
    assert [record.metrics["bounded"] for record in watch.records] == [1.0, 1.0]


@dataclass
class Controlled(Volunteer):
    """A client of SCAFFOLD.

    Attributes:
        odd: its change of the control variate is long, and holds this array besides.
    """

    odd: Array | None = None

    def __call__(self, message: Message) -> Message | None:
        reply = super().__call__(message)
        if reply is not None and message.metadata.message_type == "train":
            change = {"w": Array(np.full(1, 0.3 if self.odd else 0.1, dtype=np.float32))}
            reply.content[CONTROL_DELTA] = ArrayRecord(change | ({"x": self.odd} if self.odd else {}))
        return reply


ODD = {
    "array 'x' has dtype <U1: numbers are allowed": Array(np.array(["x"])),
    "array 'x' has dtype complex64: numbers are allowed": Array(np.zeros(1, np.complex64)),
    "array 'x': array of shape (4,) and dtype float32 has 12 bytes": Array(
        "float32", (4,), "numpy.ndarray", Array(np.zeros(4, np.float32)).data[:-4]
    ),
    "model has arrays ['w', 'x'], expected ['w']": Array(np.zeros(1, np.float32)),
}


@pytest.mark.parametrize("influence", ["bounded", "off"])
@pytest.mark.parametrize("reason", ODD)
def test_a_record_that_cannot_be_used_concerns_its_clients_alone(reason: str, influence: str) -> None:
    # Alone online, or three of ten beside clients that sit out, it is no fault of the strategy's either.
    for odd, joining, others in ((1, 4, 0), (1, 0, 0), (3, 0, 7)):
        bad = {10 + k: Controlled(f"bad{k}", odd=ODD[reason]) for k in range(odd)}
        good = {20 + k: Controlled(f"good{k}") for k in range(joining)}
        idle = {30 + k: Volunteer(f"idle{k}", decision=0) for k in range(others)}
        _, watch = run(Scaffold(influence=influence, evaluate_every=0), MemoryGrid({**bad, **good, **idle}), 3)
        for record in watch.records:
            assert (record.count("joined"), record.count("failed")) == (joining, odd)
            assert record.failures["bad0"] == f"{CONTROL_DELTA}: {reason}"
        assert len(watch.records) == 3


def test_mwfeds_loads_have_a_bound() -> None:
    assert loads([0, 0, 0, 10], 10) == [1, 1, 1, 40]
    # The weights are 1, 1, 1 and 3 medians: 40 steps are shared out as 6.67, 6.67, 6.67 and 20.
    assert loads([0, 0, 0, 10], 10, most=3.0) == [7, 7, 7, 20]


# -- the common direction ----------------------------------------------------------------------------------


def test_an_update_against_the_common_direction_counts_as_zero() -> None:
    medians, direction = Medians(), Direction()
    first = bounds(medians, direction, norm=2.0)
    sent(first, *(reply(name, 0.0, 4.0) for name in ("a", "b")), *(reply(name, 3.0, 0.0) for name in ("c", "d")))
    assert first.against == set(), "the first round knows of no direction"
    first.close()
    # The lower median of 3, 3, 4, 4 is 3: the mean of the updates is (1.5, 1.5), and half of it is history.
    assert direction.vectors["w"].tolist() == pytest.approx([0.75, 0.75])
    again = bounds(medians, direction, norm=2.0)
    counted = sent(
        again, reply("a", 0.0, 2.0), reply("b", 1.0, -0.9), reply("c", 3.0, 0.0), reply("mallory", -2.0, 1.9)
    )
    assert again.against == {"mallory"}
    assert again.cut == set()
    assert {name: update_of(counts) for name, counts in counted.items()} == {
        "a": [0.0, 2.0],
        "b": [1.0, -0.9],
        "c": [3.0, 0.0],
        "mallory": [0.0, 0.0],
    }
    again.close()
    # Half of (0.75, 0.75), and half of the mean over four clients: (4.0, 1.1) / 4.
    assert direction.vectors["w"].tolist() == pytest.approx([0.375 + 0.5, 0.375 + 0.1375])


def test_a_direction_that_a_third_of_the_updates_contradict_is_forgotten() -> None:
    medians, direction = Medians(), Direction({"w": np.array([1.0, 0.0])})
    for against, names in ((1, "abc"), (2, "abcde")):
        own = bounds(medians, Direction(direction.vectors), norm=2.0)
        signs = [-1.0] * against + [1.0] * (len(names) - against)
        sent(own, *(reply(name, sign, 0.0) for name, sign in zip(names, signs, strict=True)))
        assert len(own.against) == against
        own.close()
        assert bool(own.directions[keys.ARRAYS].vectors) == (against == 1)


def test_each_record_has_its_own_direction() -> None:
    own, record = bounds(), "change"
    own.directions = {
        keys.ARRAYS: Direction({"w": np.array([1.0, 0.0])}),
        record: Direction({"w": np.array([0.0, 1.0])}),
    }

    def of(name: str, arrays: float, change: float) -> Reply:
        return replace(reply(name, arrays, 0.0), records={record: model(0.0, change)})

    replies = [*(of(name, 2.0, 3.0) for name in "abcd"), of("e", -2.0, 3.0), of("f", 2.0, -3.0), of("g", 2.0, -3.0)]
    counted = sent(own, *replies, of("h", -2.0, -3.0))
    assert own.against == set("efgh")
    found = {name: (update_of(each)[0], values_of(each.records[record])[1]) for name, each in counted.items()}
    both = dict.fromkeys("abcd", (2.0, 3.0))
    assert found == both | {"e": (0.0, 3.0), "f": (2.0, 0.0), "g": (2.0, 0.0), "h": (0.0, 0.0)}
    own.close()
    # Two of eight models are against theirs; three of eight changes are, which is more than a third.
    assert own.directions[keys.ARRAYS].vectors["w"].tolist() == pytest.approx([0.5 + 0.5 * 12 / 8, 0.0])
    assert own.directions[record].vectors == {}


def test_a_record_of_another_layout_than_the_model_is_bounded_in_length() -> None:
    own, record = bounds(), "head"
    own.directions = {keys.ARRAYS: Direction(), record: Direction({"w": np.array([0.0, 1.0])})}
    heads = {"a": (3.0,), "b": (3.0,), "c": (-3.0,), "d": (5.0,)}
    replies = [replace(reply(n, 1.0, 0.0), records={record: model(*values)}) for n, values in heads.items()]
    counted = sent(own, *replies)
    assert [values_of(counted[name].records[record]) for name in heads] == [
        [3.0],
        [3.0],
        [-3.0],
        [pytest.approx(3.0)],
    ]
    assert own.against == set()


@dataclass
class Steady(Volunteer):
    """A client of SCAFFOLD whose control variate is 1, or changes by a number a round after the first."""

    change: float = 0.0

    def __call__(self, message: Message) -> Message | None:
        reply = super().__call__(message)
        if reply is not None and message.metadata.message_type == "train":
            first = message.content["config"][keys.SERVER_ROUND] == 1
            reply.content[CONTROL_DELTA] = model(1.0 if first else self.change)
        return reply


@pytest.mark.parametrize(
    ("change", "cut", "controls"),
    [
        (-0.75, [0, 0, 1, 1], [5.0, 4.25, 4.0, 4.0]),  # 0.25 counts, -0.5 and -1.25 are against the others'
        (0.75, [0, 0, 1, 1], [5.0, 5.0, 5.0, 5.0]),  # 1.75 and 2.5 count as the median, 1
        (1.5, [0, 1, 1, 1], [5.0, 5.0, 5.0, 5.0]),  # so do 2.5 and 4; 5.5 is refused, what counted before stays
    ],
)
def test_a_control_variate_is_bounded_and_not_its_changes_alone(
    change: float, cut: list[int], controls: list[float]
) -> None:
    clients = {10 + k: Steady(f"c{k}", local=1.0, change=change if k == 4 else 0.0) for k in range(5)}
    strategy = Scaffold(influence="bounded", evaluate_every=0)
    totals: list[float] = []
    before = {number: lambda: totals.extend(strategy.carried()["control-sum"]["w"]) for number in (2, 3, 4)}
    _, watch = run(strategy, MemoryGrid(dict(clients)), 4, Watch(before=before))
    assert [record.metrics["bounded"] for record in watch.records] == cut
    assert [*totals, *strategy.carried()["control-sum"]["w"]] == pytest.approx(controls)
    again = Scaffold(influence="bounded")
    rounds_of(again).restore(rounds_of(strategy).state())
    assert repr(again.carried()) == repr(strategy.carried())
    assert repr(rounds_of(again).directions) == repr(rounds_of(strategy).directions)


def test_a_bounded_run_that_kept_no_control_variates_of_clients_begins_with_zero() -> None:
    before: dict[str, dict[str, Any]] = {
        "control-taken": {"clients": ["c0"], "rounds": [3]},
        "control-sum": {"w": np.ones(1, np.float32)},
    }
    for influence, control in (("bounded", 0.0), ("off", 1.0)):
        strategy = Scaffold(influence=influence)
        strategy.take_up(before)
        told = strategy.wave(opened(strategy, 4, model(0.0)), [Member("c0", 1)])
        assert values_of(told.records["control"]) == [control]
        assert told.each["c0"]["scaffold.control-round"] == 3 * control


def test_the_direction_is_carried_on_and_of_gradients_too() -> None:
    clients = {10 + k: Volunteer(f"c{k}", local=1.0 + k / 10) for k in range(4)}
    strategy = FedAvg(influence="bounded", evaluate_every=0)
    run(strategy, MemoryGrid(dict(clients)), 1)
    # From 0 to 1.0, 1.1, 1.1, 1.1: the longer ones are as long as the median.
    assert rounds_of(strategy).directions[keys.ARRAYS].vectors["w"].tolist() == pytest.approx([0.5 * 1.075])
    again = FedAvg(influence="bounded", evaluate_every=0)
    rounds_of(again).restore(rounds_of(strategy).state())
    assert (
        rounds_of(again).directions[keys.ARRAYS].vectors["w"].tolist()
        == rounds_of(strategy).directions[keys.ARRAYS].vectors["w"].tolist()
    )
    assert "common-direction" in rounds_of(strategy).state(), "the name in checkpoints of before"
    assert "common-direction" not in rounds_of(FedAvg()).state()
    gradients = {10 + k: Volunteer(f"c{k}", local=1.0, metrics={keys.LOSS: 9.0}) for k in range(4)}
    adagd = AdaGD(influence="bounded", evaluate_every=0, step_size=0.1, precision=0.3)
    run(adagd, MemoryGrid(dict(gradients)), 1)
    assert rounds_of(adagd).directions[keys.ARRAYS].vectors["w"].tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("last", [9.0, 0.8])
def test_adagd_sums_bounded_gradients_and_predicts_by_those_that_were_sent(last: float) -> None:
    # eta = 0.1, the threshold 0.6, the lower median of the norms 0.2: 0.9 and 3.0 count as 0.2 in the sum.
    sends = ((0.1, 9.0), (0.2, 9.0), (0.2, 9.0), (0.9, 9.0), (3.0, last))
    clients = {
        10 + k: Volunteer(f"c{k}", local=gradient, metrics={keys.LOSS: loss})
        for k, (gradient, loss) in enumerate(sends)
    }
    strategy = AdaGD(influence="bounded", evaluate_every=0, step_size=0.1, precision=0.3)
    result, watch = run(strategy, MemoryGrid(dict(clients)), 1)
    (record,) = watch.records
    assert record.count("joined") == 5, "no client is left out of a round that needs all"
    assert record.metrics["bounded"] == 2.0
    if last == 9.0:
        assert values_of(result.arrays) == [pytest.approx(-0.1 * (0.1 + 4 * 0.2) / 5)]
    else:  # 0.8 - 0.1 * 3.0 is at most 0.6: the client is in D, and the others may not move along its gradient
        assert (record.metrics["leaving"], record.metrics["case"]) == (1.0, 1.0)
        assert values_of(result.arrays) == [0.0]


@pytest.mark.parametrize("clients_per_round", [20, 25])
def test_the_places_of_refused_clients_are_asked_for_again(clients_per_round: int) -> None:
    far = {f"c{k:02d}" for k in range(0, 40, 3)}
    grid = MemoryGrid({k: Volunteer(f"c{k:02d}", local=900.0 if k % 3 == 0 else 1.0 + k / 100) for k in range(40)})
    strategy = FedAvg(influence="bounded", clients_per_round=clients_per_round, evaluate_every=0)
    _, watch = run(strategy, grid, 3)
    for record in watch.records:
        assert record.count("joined") == clients_per_round
        assert set(record.failures) <= far
        assert record.failures


def test_the_numbers_of_a_client_that_waited_and_was_left_out_are_not_told() -> None:
    grid = MemoryGrid({k: Volunteer(f"c{k}", local=1.0, metrics={"x": 1.0}) for k in range(5)})
    grid.nodes[5] = Volunteer("far", local=1e6, examples=10**9, metrics={"x": 1e6})
    result, watch = run(FedAvg(influence="bounded", evaluate_every=0), grid, 2)
    assert [list(record.failures) for record in watch.records] == [["far"]] * 2
    assert [metrics["x"] for metrics in result.train_metrics_clientapp.values()] == [1.0, 1.0]
