"""FedAU's server against the authors' rule written out on lists of intervals, and weights that become 1 / p."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedappeal.settings.config import ConfigError
from strategies import FedAU, FedAvg
from strategies.fedau import Participation
from tests.grid import MemoryGrid, Volunteer, Watch, model, run, values_of
from tests.strategies.played import LEAVES, Floats, Joins, Turns, close, drawn, play
from tests.strategies.rounds.mixed_round import Join, answer, ask, check_mixed

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])


def written_out(start: Floats, rounds: Sequence[Turns], clients: int, cutoff: int, eta: float) -> list[Floats]:
    """Each client's intervals as a list: its weight is their mean, 1 while there is none."""
    here = set(range(clients))
    intervals: dict[int, list[int]] = {k: [] for k in here}
    waited = dict.fromkeys(here, 0)
    w, models = start.copy(), []
    for turns in rounds:
        here -= {k for k, turn in turns.items() if turn == LEAVES}
        step = np.zeros_like(w)
        for k in sorted(here):
            if isinstance(turn := turns.get(k), Joins):
                step += (np.mean(intervals[k]) if intervals[k] else 1.0) * turn.update
                intervals[k].append(waited[k] + 1)
                waited[k] = 0
            else:
                waited[k] += 1
                if waited[k] == cutoff:
                    intervals[k].append(cutoff)
                    waited[k] = 0
        w = w + eta * step / len(here)
        models.append(w)
    return models


@pytest.mark.parametrize("cutoff", [1, 3, 50])
@pytest.mark.parametrize("resumed_after", [0, 7])
def test_several_rounds_are_the_authors_rule(cutoff: int, resumed_after: int) -> None:
    rounds = drawn(1, 30, [1.0, 0.6, 0.3, 0.1])
    rounds[4] = {}
    models = play(lambda: FedAU(cutoff=cutoff, server_lr=0.7), START, rounds, 4, resumed_after)
    close(models, written_out(START, rounds, 4, cutoff, 0.7))


def test_a_client_that_left_is_neither_counted_nor_remembered() -> None:
    rounds = drawn(2, 12, [0.9, 0.5, 0.5])
    rounds[5] = {**rounds[5], 2: LEAVES}
    rounds[6:] = [{k: turn for k, turn in turns.items() if k != 2} for turns in rounds[6:]]
    close(play(FedAU, START, rounds, 3, 8), written_out(START, rounds, 3, 50, 1.0))


@pytest.mark.parametrize("p", [0.8, 0.3, 0.05])
def test_the_weight_of_a_bernoulli_client_becomes_the_inverse_of_its_probability(p: float) -> None:
    rng, client = np.random.default_rng(4), Participation()
    for joins in rng.random(40_000) < p:
        client.count(joins, cutoff=10**9)
    assert client.weight == pytest.approx(1 / p, rel=0.05)


def test_the_cutoff_bounds_the_weight() -> None:
    client = Participation()
    for _ in range(1000):
        client.count(joined=False, cutoff=7)
    assert client.weight == 7
    assert Participation().weight == 1


def test_a_client_that_joins_every_fourth_round_has_the_say_of_one_that_always_joins() -> None:
    one = np.ones(1)
    rounds = [{0: Joins(one), **({1: Joins(-one)} if number % 4 == 0 else {})} for number in range(1, 41)]
    models = play(FedAU, np.zeros(1), rounds, 2)
    assert models[39] == pytest.approx(models[35])  # over a period the two cancel
    plain = play(FedAvg, np.zeros(1), rounds, 2)
    assert plain[39] - plain[35] == pytest.approx(3)  # in FedAvg the first has its way


def test_with_full_participation_it_is_the_plain_average() -> None:
    rounds = drawn(6, 5, [1.0, 1.0, 1.0])
    alike = [{k: Joins(turn.update) for k, turn in turns.items() if isinstance(turn, Joins)} for turns in rounds]
    close(play(FedAU, START, rounds, 3), play(FedAvg, START, alike, 3))


def test_a_round_of_mixed_replies() -> None:
    # 30 nodes, of which one leaves for good; each weighs 1: 1 + ((1, -1) + (-1, 3)) / 29
    check_mixed(FedAU(), [Join(model(2, 0)), Join(model(0, 4))], [1 + 0 / 29, 1 + 2 / 29])


def test_clients_that_are_offline_count_as_missing() -> None:
    grid = MemoryGrid({10: Volunteer("a", local=1.0), 11: Volunteer("b", local=1.0)})
    watch = Watch(before={2: lambda: void(grid.nodes.pop(11))})
    strategy = FedAU(evaluate_every=0, min_clients=2)
    run(strategy, grid, 3, watch)
    assert watch.models == [[1.0], [1.5], [2.0]]
    assert strategy.carried()["participation"] == {
        "clients": ["a", "b"],
        "silent": [0, 2],
        "intervals": [3, 1],
        "rounds": [3, 1],
    }


def void(_: object) -> None:
    """Take what a call returns."""


def test_bounds_cut_a_weight() -> None:
    strategy = FedAU(influence="bounded", influence_weight=2.0)
    for number in range(1, 40):
        messages = list(ask(strategy, number))[:4]
        joining = messages if number % 10 == 1 else messages[:3]
        arrays, _ = strategy.aggregate_train(number, [answer(m, Join(model(2, 2))) for m in joining])
    messages = list(ask(strategy, 41))[:4]
    arrays, _ = strategy.aggregate_train(41, [answer(m, Join(model(2, 2))) for m in messages])
    assert values_of(arrays) == pytest.approx([1 + 4 / 30] * 2, rel=1e-6)  # 1 + 1 + 1 + the median, not + 10


def test_what_is_not_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^fedau\.cutoff = 0 is not allowed: input should be greater than"):
        FedAU(cutoff=0)
    with pytest.raises(ConfigError, match=r"^model with BatchNorm is not allowed with strategy = 'fedau': bn "):
        FedAU().check_model(["bn.running_mean"])
    with pytest.raises(ConfigError, match=r"^aggregation = 'median' is not allowed with strategy = 'fedau'"):
        FedAU(aggregation="median")
