"""MaxFL's mathematics: the weight of equation 4 and the step of equations 5 and 6."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import example, given
from hypothesis import strategies as st

from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from server.build import check_settings
from strategies import MaxFL, appeal_weight
from strategies.maxfl import APPEAL_WEIGHT, StepSizes, theorem_step_sizes
from tests.grid import Handler, MemoryGrid, Volunteer, model, values_of

gaps = st.floats(-1e6, 1e6)


@given(gaps)
@example(2.365351149032639e-13)  # rounds to more than a quarter
def test_the_weight_lies_between_zero_and_a_quarter_and_is_symmetric(gap: float) -> None:
    weight = appeal_weight(gap, 0.0)
    assert 0.0 <= weight <= 0.25
    assert weight == appeal_weight(-gap, 0.0)
    assert weight == appeal_weight(0.0, gap)


@given(st.floats(-30, 30))
def test_the_weight_is_s_times_one_minus_s(gap: float) -> None:
    tanh = math.tanh(gap / 2)  # s = (1 + tanh(x/2)) / 2, so s (1 - s) = (1 - tanh^2) / 4 = sech^2(x/2) / 4
    assert appeal_weight(gap, 0.0) == pytest.approx((1 - tanh) * (1 + tanh) / 4, rel=1e-9, abs=1e-15)
    assert appeal_weight(gap, 0.0) == pytest.approx(0.25 / math.cosh(gap / 2) ** 2, rel=1e-12)


def test_weights_by_hand() -> None:
    assert appeal_weight(1.5, 1.5) == 0.25
    assert appeal_weight(math.log(3), 0.0) == pytest.approx(3 / 16, rel=1e-15)  # s = 3/4
    assert appeal_weight(1.0, 1.0 + math.log(4)) == pytest.approx(4 / 25, rel=1e-15)  # s = 1/5
    assert appeal_weight(math.inf, 0.0) == appeal_weight(0.0, math.inf) == 0.0
    assert appeal_weight(1e308, -1e308) == 0.0


@given(gaps, gaps)
def test_the_weight_falls_as_the_gap_grows(one: float, other: float) -> None:
    near, far = sorted((one, other), key=abs)
    assert appeal_weight(near, 0.0) >= appeal_weight(far, 0.0) * (1 - 1e-12)


def step(
    start: ArrayRecord, locals_: list[ArrayRecord], weights: list[float], *, server_lr: float, stabilizer: float
) -> ArrayRecord:
    """One round of MaxFL with the given local models and weights, through Flower's own methods."""

    def client(local: ArrayRecord, weight: float) -> Handler:
        def answer(message: Message) -> Message:
            metrics = MetricRecord({keys.NUM_EXAMPLES: 1, keys.DECISION: 1, APPEAL_WEIGHT: weight})
            return Message(RecordDict({keys.METRICS: metrics, keys.ARRAYS: local}), reply_to=message)

        return answer

    grid = MemoryGrid({10 + k: client(m, q) for k, (m, q) in enumerate(zip(locals_, weights, strict=True))})
    strategy = MaxFL(server_lr=server_lr, stabilizer=stabilizer)
    replies = grid.send_and_receive(strategy.configure_train(1, start, ConfigRecord(), grid))
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert metrics["appeal_weight"] == pytest.approx(sum(weights))
    return arrays


def test_a_step_by_hand() -> None:
    # sum q = 0.3, denominator 0.5; sum q delta = 0.2 * (2, 0) + 0.1 * (-1, 4) = (0.3, 0.4); times 2 / 0.5
    arrays = step(model(1, 1), [model(3, 1), model(0, 5)], [0.2, 0.1], server_lr=2.0, stabilizer=0.2)
    assert values_of(arrays) == pytest.approx([1 + 1.2, 1 + 1.6], rel=1e-6)


def test_weights_of_zero_leave_the_model_as_it_is() -> None:
    arrays = step(model(1, -2), [model(9, 9)], [0.0], server_lr=1.0, stabilizer=1e-3)
    assert values_of(arrays) == [1, -2]


@given(st.integers(1, 6), st.floats(0.01, 10.0), st.floats(1e-6, 1.0), st.integers(0, 2**32 - 1))
def test_the_step_is_equation_six(clients: int, server_lr: float, stabilizer: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, local = rng.normal(size=7), rng.normal(size=(clients, 7))
    weights = rng.uniform(0, 0.25, clients)
    expected = start + server_lr * (weights @ (local - start)) / (weights.sum() + stabilizer)
    got = step(
        ArrayRecord({"w": Array(start)}),
        [ArrayRecord({"w": Array(row)}) for row in local],
        weights.tolist(),
        server_lr=server_lr,
        stabilizer=stabilizer,
    )
    np.testing.assert_allclose(got["w"].numpy(), expected, rtol=1e-9, atol=1e-9)


def test_one_local_full_batch_step_is_a_gradient_step_on_the_appeal_objective() -> None:
    """Equation 3's relaxed objective, mean_k sigmoid(F_k - rho_k), by autograd; up to the adaptive step size."""
    torch.manual_seed(0)
    clients, size, local_lr, server_lr, stabilizer = 4, 6, 0.05, 0.7, 1e-2
    data = torch.randn(clients, 20, size, dtype=torch.float64)
    target = torch.randn(clients, 20, dtype=torch.float64)
    rho = torch.tensor([0.5, 1.0, 2.0, 6.0], dtype=torch.float64)

    def losses(w: torch.Tensor) -> torch.Tensor:
        return ((data @ w - target) ** 2).mean(dim=1)

    w = torch.randn(size, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.sigmoid(losses(w) - rho).mean(), w)
    local, weights = [], []
    for k in range(clients):
        loss = losses(w)[k]
        (own,) = torch.autograd.grad(loss, w)
        local.append(ArrayRecord({"w": Array((w - local_lr * own).detach().numpy())}))
        weights.append(appeal_weight(loss.item(), rho[k].item()))
    start = ArrayRecord({"w": Array(w.detach().numpy())})
    got = step(start, local, weights, server_lr=server_lr, stabilizer=stabilizer)["w"].numpy()
    rate = server_lr * local_lr * clients / (sum(weights) + stabilizer)
    np.testing.assert_allclose(got, (w - rate * gradient).detach().numpy(), rtol=1e-9)
    assert torch.sigmoid(losses(torch.from_numpy(got)) - rho).mean() < torch.sigmoid(losses(w) - rho).mean()


@pytest.mark.parametrize("claimed", [0.3, 0.2500001, -1e-9, float("nan"), None])
def test_a_weight_outside_its_bounds_is_left_out(claimed: float | None) -> None:
    metrics = {} if claimed is None else {APPEAL_WEIGHT: claimed}
    grid = MemoryGrid(
        {11: Volunteer("a", metrics={APPEAL_WEIGHT: 0.25}), 12: Volunteer("b", local=50, metrics=metrics)}
    )
    result = MaxFL(stabilizer=0.25, evaluate_every=0).start(grid, model(0), 1)
    assert values_of(result.arrays) == [0.5]  # 0.25 * 1 / (0.25 + 0.25): client b did not count


def test_clients_are_told_how_long_to_tune() -> None:
    grid = MemoryGrid({11: Volunteer("a", metrics={APPEAL_WEIGHT: 0.1})})
    MaxFL(tuning_steps=7, seed=3).start(grid, model(0), 1)
    for kind, key in (("train", "maxfl.tuning-steps"), ("evaluate", keys.TUNING_STEPS)):
        (message,) = grid.sent(kind)
        assert message.content.config_records[keys.CONFIG][key] == 7


@pytest.mark.parametrize(
    ("setting", "values", "allowed"),
    [
        ("server_lr", (0, -1.0), "input should be greater than 0"),
        ("stabilizer", (0.0, -1e-9), "input should be greater than 0"),
        ("tuning_steps", (-1,), "input should be greater than or equal to 0"),
        ("server_lr", (math.inf, math.nan), "input should be a finite number"),
        ("stabilizer", (math.inf, math.nan), "input should be a finite number"),
        ("tuning_steps", (math.nan,), "input should be a finite number"),
    ],
)
def test_a_setting_that_is_not_allowed_is_one_line(setting: str, values: list[float], allowed: str) -> None:
    for value in values:
        with pytest.raises(ConfigError) as error:
            MaxFL(**{setting: value})  # type: ignore[arg-type]
        assert str(error.value) == f"maxfl.{setting.replace('_', '-')} = {value} is not allowed: {allowed}"
    MaxFL(server_lr=1e-9, stabilizer=1e-300, tuning_steps=0)


# -- theorem 3.1 -----------------------------------------------------------------------------------------


def test_the_theorems_step_sizes_by_hand() -> None:
    assert theorem_step_sizes(100, 4, 9) == StepSizes(1 / 40, 6.0, 9.0)
    assert theorem_step_sizes(1, 1, 1) == (1.0, 1.0, 1.0)


def test_a_run_with_the_theorems_step_sizes() -> None:
    """T = 4, tau = 2, m = 2: eta_l = 1/4, eta_g = 2, epsilon = 2; updates 3 and 5, weights 0.1 and 0.2."""
    grid = MemoryGrid(
        {
            11: Volunteer("a", local=3, metrics={APPEAL_WEIGHT: 0.1}),
            12: Volunteer("b", local=5, metrics={APPEAL_WEIGHT: 0.2}),
        }
    )
    strategy = MaxFL(step_sizes="theorem-3.1", local_steps=2, min_clients=2, evaluate_every=0)
    told = ConfigRecord({"learning-rate": 0.7, "local-steps": 2})
    result = strategy.start(grid, model(1), 4, train_config=told)
    assert values_of(result.arrays) == pytest.approx([1 + 4 * 2 * (0.3 + 1.0) / (0.3 + 2)], rel=1e-6)
    sent = [message.content.config_records[keys.CONFIG] for message in grid.sent("train")]
    assert [config["learning-rate"] for config in sent] == [0.25] * 8
    assert [config["local-steps"] for config in sent] == [2] * 8


@pytest.mark.parametrize(("clients_per_round", "m"), [(None, 5), (4, 4), (8, 5), (1, 1)])
def test_the_theorems_m_counts_neither_unseen_clients_nor_those_that_left(
    clients_per_round: int | None, m: int
) -> None:
    """Of nine clients six are seen, and one of these leaves; tau = 4, T = 2, q_k = 0.25, updates of 1."""
    grid = MemoryGrid(
        {
            **{11 + k: Volunteer(f"seen-{k}", metrics={APPEAL_WEIGHT: 0.25}) for k in range(5)},
            16: Volunteer("leaver", decision=-1),
            **{17 + k: Volunteer(f"unseen-{k}", role=keys.UNSEEN) for k in range(3)},
        }
    )
    strategy = MaxFL(
        step_sizes="theorem-3.1", local_steps=4, evaluate_every=0, min_clients=9, clients_per_round=clients_per_round
    )
    result = strategy.start(grid, model(1), 2)
    step = math.sqrt(4 * m) * (0.25 * m) / (0.25 * m + m)
    assert values_of(result.arrays) == pytest.approx([1 + 2 * step], rel=1e-6)


def test_by_default_the_clients_rate_is_the_runs() -> None:
    grid = MemoryGrid({11: Volunteer("a", metrics={APPEAL_WEIGHT: 0.1})})
    MaxFL(local_steps=2).start(grid, model(0), 2, train_config=ConfigRecord({"learning-rate": 0.7}))
    assert [m.content.config_records[keys.CONFIG]["learning-rate"] for m in grid.sent("train")] == [0.7] * 2


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"step_sizes": "theorem"},
            "maxfl.step-sizes = 'theorem' is not allowed: input should be 'set' or 'theorem-3.1'",
        ),
        (
            {"step_sizes": "theorem-3.1", "local_steps": 0},
            "local-steps = 0 is not allowed with maxfl.step-sizes = 'theorem-3.1': tau is a number of steps "
            "(at least 1)",
        ),
        (
            {"step_sizes": "theorem-3.1", "local_steps": 3, "server_lr": 0.5},
            "maxfl.server-lr = 0.5 is not allowed with maxfl.step-sizes = 'theorem-3.1': it is sqrt(tau m) (1)",
        ),
        (
            {"step_sizes": "theorem-3.1", "local_steps": 3, "stabilizer": 0.5},
            "maxfl.stabilizer = 0.5 is not allowed with maxfl.step-sizes = 'theorem-3.1': it is m (0.001)",
        ),
        (
            {"step_sizes": "theorem-3.1", "local_steps": 3, "lr_schedule": "cosine"},
            "lr-schedule = 'cosine' with lr-warmup-rounds = 0 is not allowed with maxfl.step-sizes = 'theorem-3.1': "
            "eta_l is the same in all rounds (constant, 0)",
        ),
    ],
)
def test_what_does_not_go_with_the_theorem_is_one_line(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        MaxFL(**settings)  # type: ignore[arg-type]
    assert str(error.value) == line


def test_the_theorems_tau_is_the_number_of_local_steps() -> None:
    given = {"strategy": "maxfl", "local-steps": 5, "maxfl.step-sizes": "theorem-3.1"}
    check_settings(RunConfig.parse(given))
    check_settings(RunConfig.parse({**given, "maxfl.local-steps": 5}))
    with pytest.raises(ConfigError, match=r"maxfl.local-steps = 3 is not allowed .* tau is local-steps = 5"):
        check_settings(RunConfig.parse({**given, "maxfl.local-steps": 3}))


def test_the_theorem_needs_the_number_of_rounds() -> None:
    grid = MemoryGrid({11: Volunteer("a", metrics={APPEAL_WEIGHT: 0.1})})
    strategy = MaxFL(step_sizes="theorem-3.1", local_steps=2)
    with pytest.raises(ConfigError, match="without start, which knows the number of rounds"):
        grid.send_and_receive(strategy.configure_train(1, model(0), ConfigRecord(), grid))
