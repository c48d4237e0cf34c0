"""TERM's server against its rule written out, the tilted loss' own gradient, and at losses that overflow."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import TERM, FedAvg
from tests.grid import MemoryGrid, Volunteer, model, run
from tests.strategies.played import Floats, Joins, Turns, close, drawn, play
from tests.strategies.rounds.mixed_round import Join, check_mixed

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])


def written_out(start: Floats, rounds: Sequence[Turns], tilt: float, share: float, eta: float) -> list[Floats]:
    """Client by client, without a thought for overflow."""
    w, estimate, models = start.copy(), None, []
    for turns in rounds:
        joins = [turn for turn in turns.values() if isinstance(turn, Joins)]
        if joins:
            weights = [math.exp(tilt * turn.metrics[keys.LOSS]) for turn in joins]
            mean = sum(weights) / len(joins)
            estimate = mean if estimate is None else (1 - share) * estimate + share * mean
            step = sum(a / estimate * turn.update for a, turn in zip(weights, joins, strict=True))
            w = w + eta * step / len(joins)
        models.append(w)
    return models


@pytest.mark.parametrize("resumed_after", [0, 5])
@pytest.mark.parametrize(
    ("tilt", "share", "eta"), [(0.1, 0.5, 1.0), (2.0, 0.2, 0.7), (-1.5, 1.0, 1.0), (0, 0.5, 1.0)]
)
def test_several_rounds_are_the_rule(resumed_after: int, tilt: float, share: float, eta: float) -> None:
    rounds = drawn(1, 14, [1.0, 0.6, 0.4, 0.2], loss=keys.LOSS)
    rounds[4] = {}
    models = play(lambda: TERM(tilt=tilt, share=share, server_lr=eta), START, rounds, 4, resumed_after)
    close(models, written_out(START, rounds, tilt, share, eta))


def in_the_authors_units(rounds: Sequence[Turns], tilt: float) -> list[Floats]:
    """One round each of the authors' `tilting.py`, with E as it is after many rounds alike, times m."""
    found = []
    for turns in rounds:
        joins = [turn for turn in turns.values() if isinstance(turn, Joins)]
        losses = np.array([turn.metrics[keys.LOSS] for turn in joins])
        estimates = 0.0
        for _ in range(60):
            new = np.mean(np.exp(tilt * (losses - losses.max())))
            estimates = estimates * 0.5 + new * 0.5
        weights = np.exp(tilt * (losses - losses.max())) / (estimates * len(joins))
        solutions = [START + weight * turn.update for weight, turn in zip(weights, joins, strict=True)]
        found.append(START + len(joins) * (np.mean(solutions, axis=0) - START))
    return found


@pytest.mark.parametrize("tilt", [0.1, 3.0, -2.0])
def test_a_first_round_is_the_authors_programs_step_times_the_number_of_clients(tilt: float) -> None:
    rounds = drawn(7, 6, [1.0, 1.0, 0.7], loss=keys.LOSS)
    ours = [play(lambda: TERM(tilt=tilt), START, [turns], 3)[0] for turns in rounds]
    close(ours, in_the_authors_units(rounds, tilt))


@pytest.mark.parametrize("tilt", [0.5, -0.7, 4.0])
def test_one_gradient_step_descends_the_tilted_loss(tilt: float) -> None:
    """Lemma 1 of the paper: with ``w_k = w - eta grad F_k`` it is ``w - eta grad R_t``, here by differences."""
    rng = np.random.default_rng(3)
    centres, eta = rng.normal(size=(4, 5)), 0.1

    def losses(w: Floats) -> Floats:
        return 0.5 * ((w - centres) ** 2).sum(axis=1)

    def tilted_loss(w: Floats) -> float:
        return float(np.log(np.mean(np.exp(tilt * losses(w)))) / tilt)

    w = rng.normal(size=5)
    turns = {
        k: Joins(-eta * (w - c), 1, {keys.LOSS: f}) for k, (c, f) in enumerate(zip(centres, losses(w), strict=True))
    }
    (got,) = play(lambda: TERM(tilt=tilt), w, [turns], 4)
    np.testing.assert_allclose(got, w - eta * differences(tilted_loss, w), atol=1e-8)


def differences(function: Callable[[Floats], float], at: Floats) -> Floats:
    """The gradient, by central differences."""
    step = 1e-5
    return np.array([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))])


def test_no_tilt_is_unweighted_fedavg() -> None:
    rounds = [{k: Joins(np.ones(5) * k, 1, {keys.LOSS: 9.0 * k}) for k in range(3)}] * 4
    close(play(lambda: TERM(tilt=0.0), START, rounds, 3), play(FedAvg, START, rounds, 3))


@pytest.mark.parametrize(("tilt", "counts"), [(1e6, 2), (-1e6, 0)])
def test_a_large_tilt_is_the_worst_client_and_its_opposite_the_best(tilt: float, counts: int) -> None:
    """Its weight exp(t (F_k - R_t)) is m, of which the mean makes the whole way to its model."""
    turns = {k: Joins(np.eye(5)[k], 1, {keys.LOSS: 1.0 + k}) for k in range(3)}
    (got,) = play(lambda: TERM(tilt=tilt), START, [turns], 3)
    np.testing.assert_allclose(got, START + np.eye(5)[counts], atol=1e-12)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=4), st.floats(0, 1e3), st.floats(-3, 3))
def test_the_same_added_to_all_losses_changes_nothing(losses: list[float], more: float, tilt: float) -> None:
    def moved(add: float) -> list[Floats]:
        turns = {k: Joins(np.eye(5)[k], 1, {keys.LOSS: f + add}) for k, f in enumerate(losses)}
        return play(lambda: TERM(tilt=tilt), START, [turns, turns], 4)

    for one, other in zip(moved(0.0), moved(more), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@given(
    st.lists(st.sampled_from([0.0, 5e-324, 1.0, 1e300, 1.7e308]), min_size=1, max_size=6),
    st.sampled_from([-1e6, -1.0, 0.0, 1.0, 1e6]),
)
def test_absurd_losses_make_no_nan_and_no_step_of_more_than_the_whole_way_twice(
    losses: list[float], tilt: float
) -> None:
    rounds = [{0: Joins(np.ones(5), 1, {keys.LOSS: loss})} for loss in losses]
    before = START
    for w in play(lambda: TERM(tilt=tilt, share=0.5), START, rounds, 1):
        moved = w - before
        assert np.isfinite(w).all()
        assert moved.min() >= 0
        assert moved.max() <= 2 + 1e-9
        before = w


def test_a_round_of_mixed_replies() -> None:
    # t = log 2: exp(t F) is 2 and 4, E = 3. 1 + (2/3 * 1 + 4/3 * -1) / 2, and 1 + (2/3 * -1 + 4/3 * 3) / 2.
    joins = [Join(model(2, 0), {keys.LOSS: 1.0}), Join(model(0, 4), {keys.LOSS: 2.0})]
    expected = [1 - 1 / 3, 1 + 5 / 3]
    check_mixed(TERM(tilt=math.log(2)), joins, expected, [{keys.LOSS: -1e-9}, {keys.LOSS: -1.0}])


def test_what_clients_are_asked_and_what_is_not_allowed() -> None:
    grid = MemoryGrid({10: Volunteer("a")})
    (message,) = TERM().configure_train(1, model(1), ConfigRecord(), grid)
    assert message.content.config_records[keys.CONFIG][keys.STRATEGY] == "term"
    assert TERM().report(Measured(Evaluation(0.75, 0.5), rho=1.0, met=True)) == {keys.LOSS: 0.75}
    for key, value in (("tilt", math.nan), ("tilt", 2e6), ("share", 0.0), ("share", 1.1), ("server_lr", 0.0)):
        with pytest.raises(ConfigError, match=rf"^term\.{key.replace('_', '-')} = .* is not allowed"):
            TERM(**{key: value})
    with pytest.raises(ConfigError, match=r"^model with BatchNorm is not allowed with strategy = 'term': bn "):
        TERM().check_model(["bn.weight", "bn.running_var"])


def test_the_history_has_the_tilted_loss() -> None:
    """R_t = log(mean of exp(t F_k)) / t: with t = 2 and losses 0 and log 3 it is log(5) / 2."""
    losses = (0.0, math.log(3.0))
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", metrics={keys.LOSS: loss}) for k, loss in enumerate(losses)})
    _, watch = run(TERM(tilt=2.0, share=1.0), grid, 1)
    assert watch.records[0].metrics["tilted_loss"] == pytest.approx(math.log(5.0) / 2)
