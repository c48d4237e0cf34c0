"""The learning rate of a round: by hand, on the wire, in the history, and in the mathematics that uses it."""

import math
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from server.build import check_settings
from strategies import AdaGD, FedAvg, QFedAvg, Scaffold, Strategy
from strategies.rounds.shared import SharedSettings, learning_rate_share
from strategies.rounds.strategy import rounds_of, shared_of
from tests.grid import MemoryGrid, Volunteer, run, values_of
from tests.grid import model as one_array
from tests.quadratics import CURVATURES, OPTIMA, RATE, STEPS, config, learned, nodes

CLIENTS = range(3)


def shares(rounds: int, of: range | None = None, **schedule: Scalar) -> list[float]:
    shared = SharedSettings.parse({f"lr-{key.replace('_', '-')}": value for key, value in schedule.items()})
    return [learning_rate_share(shared, number, rounds) for number in of or range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("rounds", "schedule", "expected"),
    [
        (4, {}, [1, 1, 1, 1]),
        (4, {"warmup_rounds": 3}, [0.25, 0.5, 0.75, 1]),
        (5, {"schedule": "linear", "final_share": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
        (5, {"schedule": "linear", "final_share": 0.5, "warmup_rounds": 2}, [1 / 3, 2 / 3, 1, 0.75, 0.5]),
        (3, {"schedule": "cosine", "final_share": 0.2}, [1, 0.6, 0.2]),
        # (1 - cos 45 degrees) / 2 of the way from 1 to 0.1, and its mirror image
        (
            6,
            {"schedule": "cosine", "warmup_rounds": 1},
            [0.5, 1, 1 - 0.45 * (1 - math.sqrt(0.5)), 0.55, 1 - 0.45 * (1 + math.sqrt(0.5)), 0.1],
        ),
        (1, {"schedule": "linear"}, [1]),
        (3, {"schedule": "cosine", "warmup_rounds": 2}, [1 / 3, 2 / 3, 1]),
    ],
)
def test_shares_by_hand(rounds: int, schedule: dict[str, Scalar], expected: list[float]) -> None:
    assert shares(rounds, **schedule) == pytest.approx(expected, rel=1e-12)


def test_rounds_beyond_those_of_the_schedule_keep_its_last_share() -> None:
    assert shares(3, range(3, 7), schedule="linear", final_share=0.3) == [0.3] * 4


@given(
    st.sampled_from(["linear", "cosine"]),
    st.integers(2, 60),
    st.integers(0, 20),
    st.floats(1e-6, 1.0),
)
def test_a_schedule_rises_then_falls_from_one_to_its_final_share(
    kind: str, falling: int, warmup: int, final: float
) -> None:
    found = shares(warmup + falling, schedule=kind, warmup_rounds=warmup, final_share=final)
    assert found[warmup] == 1.0
    assert found[-1] == pytest.approx(final, rel=1e-9)
    assert all(0 < a < b for a, b in pairwise(found[: warmup + 1]))
    assert all(a >= b - 1e-15 for a, b in pairwise(found[warmup:]))


def told_rates(grid: MemoryGrid, rounds: int) -> list[set[object]]:
    return [
        {m.content.config_records[keys.CONFIG].get("learning-rate") for m in grid.sent("train", number)}
        for number in range(1, rounds + 1)
    ]


def started(strategy: Strategy, rounds: int = 3, **told: float) -> tuple[MemoryGrid, list[dict[str, object]]]:
    grid = MemoryGrid({100 + k: Volunteer(f"c{k}") for k in range(2)})
    train_config = ConfigRecord({key.replace("_", "-"): value for key, value in told.items()})
    _, watch = run(strategy, grid, rounds, train_config=train_config)
    return grid, [dict(record.as_line()) for record in watch.records]


def test_every_train_message_and_the_history_tell_the_rounds_rate() -> None:
    grid, lines = started(FedAvg(lr_schedule="linear", lr_final_share=0.5), learning_rate=0.4)
    rates = [line["learning_rate"] for line in lines]
    assert rates == pytest.approx([0.4, 0.3, 0.2], rel=1e-12)
    assert told_rates(grid, 3) == [{rate} for rate in rates]


def test_a_constant_rate_is_told_as_it_is_and_is_not_in_the_history() -> None:
    grid, lines = started(FedAvg(lr_final_share=0.5), learning_rate=0.4)
    assert told_rates(grid, 3) == [{0.4}] * 3
    assert not any("learning_rate" in line for line in lines)
    grid, _ = started(FedAvg())
    assert told_rates(grid, 3) == [{None}] * 3


def test_a_schedule_without_a_rate_to_scale_is_refused_before_the_roll_call() -> None:
    grid = MemoryGrid({100: Volunteer("c")})
    line = r"^learning-rate is missing in train_config: lr-schedule = 'cosine' with lr-warmup-rounds = 0 scales it$"
    with pytest.raises(ConfigError, match=line):
        run(FedAvg(lr_schedule="cosine"), grid, 3)
    assert grid.pushed == []


def test_flowers_four_methods_know_a_warm_up_but_not_the_number_of_rounds() -> None:
    grid, told = MemoryGrid({100: Volunteer("c")}), ConfigRecord({"learning-rate": 0.4})
    for number, rate in ((1, 0.2), (2, 0.4), (30, 0.4)):
        (message,) = FedAvg(lr_warmup_rounds=1).configure_train(number, one_array(0), told, grid)
        assert message.content.config_records[keys.CONFIG]["learning-rate"] == rate
    with pytest.raises(ConfigError, match=r"^lr-schedule = 'linear' is not allowed without start"):
        list(FedAvg(lr_schedule="linear").configure_train(1, one_array(0), told, grid))


def after_descent(w: float, client: int, rate: float) -> float:
    """w after K full-batch steps of a client: ``b + (1 - rate a)^K (w - b)``."""
    a, b = CURVATURES[client], OPTIMA[client]
    return b + (1 - rate * a) ** STEPS * (w - b)


def test_clients_train_with_the_rounds_rate() -> None:
    w, settings = 0.0, config(3)
    for share in (1.0, 0.6, 0.2):
        w = float(np.mean([after_descent(w, k, share * RATE) for k in CLIENTS]))
    strategy = FedAvg(lr_schedule="cosine", lr_final_share=0.2, min_clients=3)
    assert learned(strategy, MemoryGrid(nodes(settings)), 3, settings) == pytest.approx(w, rel=1e-12)


def test_scaffolds_control_variates_are_gradients_at_any_rate() -> None:
    """c_i^+ - c_i + c = (x - y_i) / (K eta_l), where eta_l is the round's."""
    settings, strategy = config(3), Scaffold(lr_warmup_rounds=3, min_clients=3)
    learned(strategy, MemoryGrid(nodes(settings)), 1, settings)
    (total,) = strategy.carried()["control-sum"].values()
    expected = sum((0.0 - after_descent(0.0, k, RATE / 4)) / (STEPS * RATE / 4) for k in CLIENTS)
    assert float(total[0]) == pytest.approx(expected, rel=1e-12)


def test_qfedavgs_lipschitz_constant_follows_the_rounds_rate() -> None:
    # q = 1, F = 2, w_k - w = 0.5, L = 1 / (0.5 / 4) = 8: dw = -4, Delta = -8, h = 16 + 16: a step of 8 / 32
    strategy = QFedAvg(q=1.0, learning_rate=0.5, lr_warmup_rounds=3)
    grid = MemoryGrid({100: Volunteer("c", local=0.5, metrics={keys.LOSS: 2.0})})
    result, _ = run(strategy, grid, 1, train_config=ConfigRecord({"learning-rate": 0.5}))
    assert values_of(result.arrays) == pytest.approx([0.25], rel=1e-6)


REFUSED = "is not allowed with strategy = 'adagd': a round is one step of adagd.step-size"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr-schedule": "step"}, "lr-schedule = 'step' is not allowed: input should be 'constant', 'linear' or"),
        ({"lr-warmup-rounds": 20}, "lr-warmup-rounds = 20 is not allowed: less than rounds = 20"),
        ({"lr-warmup-rounds": -1}, "lr-warmup-rounds = -1 is not allowed: input should be greater than or equal"),
        ({"lr-final-share": 0.0}, "lr-final-share = 0.0 is not allowed: input should be greater than 0"),
        ({"lr-final-share": 1.5}, "lr-final-share = 1.5 is not allowed: input should be less than or equal to 1"),
        ({"lr-schedul": "linear"}, "unknown setting 'lr-schedul'; did you mean 'lr-schedule'?"),
        (
            {"strategy": "adagd", "adagd.form": "one-gradient", "lr-schedule": "cosine"},
            f"lr-schedule = 'cosine' with lr-warmup-rounds = 0 {REFUSED}",
        ),
        (
            {"strategy": "adagd", "adagd.form": "one-gradient", "lr-warmup-rounds": 2},
            f"lr-schedule = 'constant' with lr-warmup-rounds = 2 {REFUSED}",
        ),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_settings(RunConfig.parse(settings))
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_adagd_with_local_steps_takes_a_schedule() -> None:
    assert shared_of(AdaGD(gradient_steps=2, lr_schedule="linear")).lr_schedule == "linear"


def test_the_runs_settings_reach_the_strategy() -> None:
    given = {"lr-schedule": "cosine", "lr-warmup-rounds": 2, "lr-final-share": 0.3}
    shared = check_settings(RunConfig.parse(given)).shared_settings()
    assert (shared.lr_schedule, shared.lr_warmup_rounds, shared.lr_final_share) == ("cosine", 2, 0.3)


def test_a_round_without_a_rate_to_scale_is_one_line() -> None:
    """Without start, which checks it first."""
    strategy = FedAvg(lr_schedule="cosine")
    rounds_of(strategy).setup.num_rounds = 4
    grid = MemoryGrid({10: Volunteer("a")})
    with pytest.raises(ConfigError, match=r"^learning-rate is missing in train_config: lr-schedule = 'cosine'"):
        list(strategy.configure_train(1, one_array(0.0), ConfigRecord({keys.RUN_KEY: "k"}), grid))
