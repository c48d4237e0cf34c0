"""FedAdam's server against Algorithm 2 written out coordinate by coordinate, and against Flower's own."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam as FlowersFedAdam

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import FedAdam, FedAvg
from tests.grid import MemoryGrid, Volunteer, model, values_of
from tests.strategies.played import Floats, Joins, Turns, close, drawn, play, record
from tests.strategies.rounds.mixed_round import Join, answer, ask, check_mixed

START = np.array([0.5, -1.0, 2.0, 0.0, 3.0])
HOW = {"server_lr": 0.3, "beta1": 0.8, "beta2": 0.95, "tau": 0.05}


def written_out(start: Floats, rounds: Sequence[Turns], corrected: bool) -> list[Floats]:
    """Algorithm 2 with plain numbers; ``corrected``: v from zero and Kingma and Ba's factors, as the programs do."""
    eta, b1, b2, tau = HOW["server_lr"], HOW["beta1"], HOW["beta2"], HOW["tau"]
    w, t, models = [float(x) for x in start], 0, []
    m, v = [0.0] * len(w), [0.0 if corrected else tau * tau] * len(w)
    for turns in rounds:
        joins = [turn for turn in turns.values() if isinstance(turn, Joins)]
        total = sum(turn.examples for turn in joins)
        if joins:
            t += 1
            for i in range(len(w)):
                delta = sum(turn.examples * float(turn.update[i]) for turn in joins) / total
                m[i] = b1 * m[i] + (1 - b1) * delta
                v[i] = b2 * v[i] + (1 - b2) * delta * delta
                factor = math.sqrt(1 - b2**t) / (1 - b1**t) if corrected else 1.0
                w[i] += eta * factor * m[i] / (math.sqrt(v[i]) + tau)
        models.append(np.array(w))
    return models


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("resumed_after", [0, 4])
def test_several_rounds_are_algorithm_2(corrected: bool, resumed_after: int) -> None:
    rounds = drawn(3, 12, [0.9, 0.5, 0.1, 0.3])
    rounds[6] = {}  # all sit out: no step
    models = play(lambda: FedAdam(bias_correction=corrected, **HOW), START, rounds, 4, resumed_after)
    close(models, written_out(START, rounds, corrected))
    assert (models[6] == models[5]).all()


def test_flowers_own_agrees_with_the_corrected_form() -> None:
    """Its exponents are one ahead of the round, so that round t is told as round t - 1."""
    rng = np.random.default_rng(2)
    ours, w = FedAdam(bias_correction=True, **HOW), START
    theirs = FlowersFedAdam(eta=0.3, beta_1=0.8, beta_2=0.95, tau=0.05)
    for number in range(1, 6):
        grid = MemoryGrid({10 + k: Volunteer(str(k)) for k in range(3)})
        messages = list(ours.configure_train(number, record(w), ConfigRecord(), grid))
        grid.push_messages(messages)
        replies = [
            answer(m, Join(record(w + rng.normal(size=5))), num_examples=int(rng.integers(1, 9))) for m in messages
        ]
        mine, _ = ours.aggregate_train(number, replies)
        for reply in replies:  # Flower's asks for the same metrics of all
            reply.content.metric_records[keys.METRICS].pop(keys.DECISION)
        theirs.current_arrays = {"w": w}
        peers, _ = theirs.aggregate_train(number - 1, replies)
        assert mine is not None
        assert peers is not None
        np.testing.assert_allclose(mine["w"].numpy(), peers["w"].numpy(), rtol=1e-6)
        w = np.array(mine["w"].numpy())


def test_a_large_tau_without_memory_is_fedavgs_direction() -> None:
    # beta1 = 0 and tau far above every update: the step is (eta / tau) times FedAvg's.
    rounds = drawn(5, 1, [1.0, 1.0])
    (got,) = play(lambda: FedAdam(server_lr=1e3, beta1=0.0, beta2=0.0, tau=1e6), START, rounds, 2)
    (average,) = play(FedAvg, START, rounds, 2)
    np.testing.assert_allclose((got - START) * 1e3, average - START, rtol=1e-5)


def test_a_round_of_mixed_replies() -> None:
    # mean update (1, 2), beta1 = beta2 = 0, tau = 1: 1 + 2 D / (|D| + 1)
    strategy = FedAdam(server_lr=2.0, beta1=0.0, beta2=0.0, tau=1.0)
    joins = [Join(model(3, 1)), Join(model(1, 5))]
    check_mixed(strategy, joins, [1 + 2 * 1 / 2, 1 + 2 * 2 / 3])


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_step_that_is_not_finite_leaves_the_moments_alone() -> None:
    strategy = FedAdam(server_lr=1e38, beta1=0.0, beta2=0.0)
    first, *_ = ask(strategy, 1)
    arrays, _ = strategy.aggregate_train(1, [answer(first, Join(model(3e38, 0)))])
    assert arrays is None
    assert strategy.carried() == {"first": {}, "second": {}, "adam": {"steps": 0}}


def test_counters_are_averaged() -> None:
    from flwr.app import Array, ArrayRecord

    def mixed(w: float, count: int) -> ArrayRecord:
        return ArrayRecord({"w": Array(np.array([w], np.float32)), "n": Array(np.array(count, np.int64))})

    grid = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    strategy = FedAdam()
    messages = list(strategy.configure_train(1, mixed(0, 5), ConfigRecord(), grid))
    grid.push_messages(messages)
    arrays, _ = strategy.aggregate_train(1, [answer(m, Join(mixed(1, 7 + 2 * k))) for k, m in enumerate(messages)])
    assert arrays is not None
    assert (int(arrays["n"].numpy()), arrays["n"].dtype, arrays["w"].dtype) == (8, "int64", "float32")


def test_what_is_not_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^fedadam\.beta1 = 1\.0 is not allowed: input should be less than 1"):
        FedAdam(beta1=1.0)
    with pytest.raises(ConfigError, match=r"^fedadam\.tau = 0\.0 is not allowed"):
        FedAdam(tau=0.0)
    with pytest.raises(ConfigError, match=r"^model with BatchNorm is not allowed with strategy = 'fedadam': bn "):
        FedAdam().check_model(["bn.weight", "bn.running_var"])


def test_the_median_may_stand_in_for_the_mean() -> None:
    strategy = FedAdam(server_lr=2.0, beta1=0.0, beta2=0.0, tau=1.0, aggregation="median")
    messages = list(ask(strategy, 1))
    joins = [answer(m, Join(model(*w))) for m, w in zip(messages, [(2, 1), (3, 2), (99, 3)], strict=False)]
    arrays, _ = strategy.aggregate_train(1, joins)
    assert values_of(arrays) == pytest.approx([1 + 2 * 2 / 3, 1 + 2 * 1 / 2], rel=1e-6)
