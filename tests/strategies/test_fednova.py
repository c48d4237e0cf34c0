"""FedNova's server against the authors' rule written out client by client, and where it converges."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedappeal.core.algorithm import of_run
from fedappeal.settings.config import ConfigError, Scalar
from server.build import check_settings
from strategies import FedAvg, FedNova, Strategy
from strategies.fednova import local_norm
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, model, run, values_of
from tests.node import run_config
from tests.strategies.played import Floats, Joins, Turns, close, drawn, play
from tests.strategies.rounds.mixed_round import Join, check_mixed

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])


def moved_by_unit_gradients(steps: int, momentum: float) -> float:
    """How far SGD with momentum and step 1 goes against a gradient of 1: the norm of a_i."""
    velocity = position = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        position += velocity
    return position


def written_out(start: Floats, rounds: Sequence[Turns], epochs: int, batch: int, momentum: float) -> list[Floats]:
    """Normalised directions d_i, averaged by examples, times the effective steps."""
    w, models = start.copy(), []
    for turns in rounds:
        joins = [turn for turn in turns.values() if isinstance(turn, Joins)]
        if joins:
            p = np.array([turn.examples for turn in joins]) / sum(turn.examples for turn in joins)
            steps = [epochs * int(np.ceil(turn.examples / batch)) for turn in joins]
            a = np.array([moved_by_unit_gradients(tau, momentum) for tau in steps])
            d = [-turn.update / norm for turn, norm in zip(joins, a, strict=True)]
            effective = float(p @ a)
            w = w - effective * sum(share * each for share, each in zip(p, d, strict=True))
        models.append(w)
    return models


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [1, 3])
def test_several_rounds_are_the_authors_rule(momentum: float, epochs: int) -> None:
    rounds = drawn(1, 15, [1.0, 0.6, 0.3, 0.1])
    rounds[4] = {}
    models = play(lambda: FedNova(local_epochs=epochs, batch_size=7, momentum=momentum), START, rounds, 4, 6)
    close(models, written_out(START, rounds, epochs, 7, momentum))


@pytest.mark.parametrize("steps", [1, 2, 17, 1000])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99])
def test_the_norm_is_how_far_unit_gradients_move_a_model(steps: int, momentum: float) -> None:
    assert local_norm(steps, momentum) == pytest.approx(moved_by_unit_gradients(steps, momentum), rel=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_local_steps_it_is_fedavg(momentum: float) -> None:
    rounds = drawn(2, 6, [0.9, 0.7, 0.4])
    close(play(lambda: FedNova(local_steps=5, momentum=momentum), START, rounds, 3), play(FedAvg, START, rounds, 3))


def test_it_finds_the_minimum_that_fedavg_misses() -> None:
    """Losses ``(w - b)^2 / 2``, steps of 0.001, as many as a client has examples: 100 and 1."""
    examples, optima, rate = (100, 1), (0.0, 101.0), 1e-3  # the minimum of the mean over examples is at 1

    def found(make: Callable[[], Strategy]) -> float:
        w = np.array([5.0])
        for _ in range(150):
            ways = [(1 - (1 - rate) ** n) * (b - w) for n, b in zip(examples, optima, strict=True)]
            w = play(make, w, [{k: Joins(ways[k], examples[k]) for k in range(2)}], 2)[0]
        return float(w[0])

    assert found(lambda: FedNova(local_epochs=1, batch_size=1)) == pytest.approx(1.0, rel=0.06)
    assert found(FedAvg) == pytest.approx(0.0106, rel=0.01)  # the larger client's steps count once more


def test_a_round_of_mixed_replies() -> None:
    # a = 2 and 2: FedAvg, 1 + mean of (1, -1) and (-1, 3)
    strategy = FedNova(local_epochs=2, batch_size=4)
    check_mixed(strategy, [Join(model(2, 0)), Join(model(0, 4))], [1.0, 2.0])


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "fednova.local-steps is missing: how many steps clients take, or fednova.local-epochs"),
        ({"local_epochs": 1}, "fednova.batch-size is missing: steps of an epoch follow from it"),
        (
            {"local_steps": 0, "local_epochs": 0},
            "fednova.local-steps = 0 is not allowed where fednova.local-epochs = 0",
        ),
    ],
)
def test_what_is_not_allowed(settings: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        FedNova(**settings)
    assert str(error.value) == line


def test_a_claim_of_examples_lengthens_no_step_beyond_the_median_where_influence_is_bounded() -> None:
    # Batches of 10, one epoch: 20, 20, 30 and 10^12 examples are 2, 2, 3 and 10^11 steps; updates 2, 2, 3 and 5.
    claims = ((20, 2.0), (20, 2.0), (30, 3.0), (10**12, 5.0))
    clients = {10 + k: Volunteer(f"c{k}", local=u, examples=n) for k, (n, u) in enumerate(claims)}
    strategy = FedNova(local_epochs=1, local_steps=0, batch_size=10, influence="bounded", evaluate_every=0)
    result, watch = run(strategy, MemoryGrid(dict(clients)), 1)
    # Updates a step are 1, 1, 1 and 5e-11, which the bounds leave as it is. As long as the median, 30 examples count
    # as 20, the lower median; so does the claim. So all have p = 1 / 4 and two steps.
    tau = 2.0
    assert watch.records[0].metrics["effective_steps"] == pytest.approx(tau)
    assert values_of(result.arrays) == [pytest.approx(tau * 3 / 4, rel=1e-5)]


def test_a_run_says_how_clients_train() -> None:
    config = run_config(strategy="fednova", local_epochs=2, local_steps=0, batch_size=8, momentum=0.5)
    check_settings(config)
    strategy = of_run(FedNova, config)
    assert strategy.settings.steps(17) == 2 * 3
    assert strategy.settings.momentum == 0.5
    assert set(rounds_of(strategy).told()) == {"strategy"}  # clients have the run's own settings
    for rule in ("adamw", "prox"):
        with pytest.raises(ConfigError) as error:
            check_settings(run_config(strategy="fednova", local_rule=rule))
        assert str(error.value) == (
            f"local-rule = '{rule}' is not allowed with strategy = 'fednova': the steps that it counts are SGD's "
            "(auto, sgd)"
        )
    with pytest.raises(ConfigError, match=r"^model with BatchNorm is not allowed with strategy = 'fednova': bn "):
        strategy.check_model(["bn.running_var"])
