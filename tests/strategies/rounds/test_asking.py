"""When a server asks clients not to opt out, where it chooses."""

import pytest

from fedappeal.protocol import keys
from strategies import FedAvg
from strategies.rounds.asking import FREE_EVERY, Asking
from strategies.rounds.exchange.members import Member
from strategies.rounds.strategy import rounds_of


def answers(met: int, of: int, key: str = keys.APPEALED_HELD_OUT) -> list[dict[str, int]]:
    return [{key: int(k < met)} for k in range(of)]


def run(shares: list[float], rounds: int, clients: int = 10) -> list[int]:
    """Return the rounds in which a server asks whose model appeals to these shares of the clients, by round."""
    asking, mandatory = Asking(), []
    for number in range(1, rounds + 1):
        if asking.asks(number, rounds):
            assert asking.may_ask(rounds)
            asking.asked += 1
            mandatory.append(number)
        share = shares[min(number, len(shares)) - 1]
        asking.note_answers(answers(round(share * clients), clients), clients, 0)
    return mandatory


def test_it_asks_until_the_target_is_reached() -> None:
    assert run([0.0, 0.2, 0.5, 0.9, 1.0], rounds=60) == [1, 2, 3, 4]


def test_it_stops_where_the_share_grows_no_longer() -> None:
    grows = [0.1, 0.2, 0.3, 0.4]
    assert run(grows, rounds=60) == list(range(1, 15))  # 10 of the 30 rounds that it may ask in pass without growth


def test_it_asks_again_when_the_share_has_fallen() -> None:
    asked = run([0.9] * 19 + [0.5] * 3 + [0.9], rounds=60)
    assert asked == [1, 21, 22, 23]


def test_it_never_asks_in_more_than_half_of_the_rounds() -> None:
    shares = [k / 100 for k in range(60)]  # growing for ever, as liars may have it
    assert run(shares, rounds=40, clients=100) == list(range(1, 21))
    assert len(run([0.0, 0.5] * 100, rounds=101)) <= 51


def test_evidence_is_pooled_and_leavers_count_as_lost() -> None:
    asking = Asking()
    for _ in range(2):
        asking.note_answers(answers(8, 10), 100, 0)
        assert asking.share is None
    asking.note_answers(answers(8, 10), 100, 0)
    assert asking.share == pytest.approx(24 / 30)
    asking.note_answers(answers(8, 10), 10, 0)
    assert asking.share == 0.8
    asking.note_answers(answers(8, 8), 8, 2)
    assert asking.share == 0.8


def test_leavers_count_once_however_few_are_asked() -> None:
    asking = Asking()
    for _ in range(6):  # of 100 clients 20 have left; five are asked in each free round, and all of them join
        asking.note_decisions(joined=5, asked=5, clients=80, left=20)
    assert asking.share == pytest.approx(0.8)


def test_it_waits_for_evidence_before_it_loses_patience() -> None:
    asking, asked = Asking(silent=False), 0
    for number in range(1, 51):  # evaluated every 25th round
        asked += asking.asks(number, 100)
        asking.asked = asked
        if number == 25:
            asking.note_answers(answers(5, 10), 10, 0)
    assert asked == 50


def test_what_clients_judge_by_counts_before_their_test_data() -> None:
    asking = Asking()
    said = [{keys.APPEALED: 1, keys.APPEALED_HELD_OUT: 0}, {keys.APPEALED: 1}, {keys.LOSS: 1.0}]
    asking.note_answers(said, 2, 0)
    assert (asking.share, asking.silent) == (0.5, False)


def test_without_evidence_every_fifth_round_is_free_and_its_decisions_count() -> None:
    asking, asked = Asking(), []
    for number in range(1, 21):
        if asking.asks(number, 60):
            asking.asked += 1
            asked.append(number)
        else:
            asking.note_decisions(joined=10 if number >= 10 else 3, asked=10, clients=10, left=0)
        asking.note_answers([{keys.NUM_EXAMPLES: 5}], 10, 0)
    assert asked == [1, 2, 3, 4, 6, 7, 8, 9]
    assert FREE_EVERY == 5


def test_its_state_goes_through_a_checkpoint() -> None:
    asking = Asking()
    assert Asking.restored(asking.state()) == asking
    for number in range(1, 9):
        asking.asked += asking.asks(number, 60)
        asking.note_answers(answers(number, 10), 10, 1)
        assert Asking.restored(asking.state()) == asking
    assert Asking.restored({"gone": []}) == Asking()


def test_no_client_is_satisfied_is_something_that_was_heard() -> None:
    asking = Asking()
    asking.note_answers(answers(0, 10), 10, 0)
    assert asking.share == 0.0
    assert Asking.restored(asking.state()).share == 0.0


def test_answers_where_no_client_is_known_count_as_they_are() -> None:
    asking = Asking()
    asking.note_answers(answers(1, 4), 0, 0)
    assert asking.share == 0.25


def test_a_strategy_hears_the_seen_clients_that_have_not_left() -> None:
    strategy = FedAvg(mandatory_rounds="auto")
    roles = {"joins": keys.SEEN, "sits-out": keys.SEEN, "gone": keys.SEEN, "only-evaluates": keys.UNSEEN}
    members = [Member(name, 10 + number, role) for number, (name, role) in enumerate(roles.items())]
    for member in members:
        rounds_of(strategy).members.enrol(member)
    rounds_of(strategy).members.left.add("gone")
    rounds_of(strategy).hear([(member, {keys.APPEALED: int(member.client_id != "sits-out")}) for member in members])
    assert rounds_of(strategy).asking.share == pytest.approx(
        2 / 3 * 1 / 2
    )  # of three clients two remain, one of them content
