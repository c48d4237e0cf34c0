"""Names, keywords and results that users of `strategies` and `client` may rely on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Strategy as FlowersStrategy
from numpy.typing import NDArray

from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from strategies import (
    AdaGD,
    FedALIGN,
    FedAvg,
    MaxFL,
)
from strategies.rounds.exchange.members import Members
from strategies.rounds.round import Round, RoundRecord
from strategies.rounds.shared import SharedSettings
from strategies.rounds.strategy import rounds_of, shared_of
from tests.grid import MemoryGrid, Volunteer, opened, run
from tests.quadratics import config, model, nodes, value_of
from tests.strategies.made import BY_KEYWORDS, MADE, crowd, every_strategy, one_round, told


def test_every_strategy_is_here() -> None:
    assert set(BY_KEYWORDS) < set(MADE)
    assert len(MADE) >= 19
    for name, make in MADE.items():
        assert (type(make()), make().name) == (STRATEGIES.load(name), name)


# -- pure functions --------------------------------------------------------------------------------------


def test_maxfls_weight() -> None:
    from strategies.maxfl import appeal_weight

    assert appeal_weight(loss=1.5, requirement=1.5) == 0.25
    assert appeal_weight(loss=1e9, requirement=-1e9) == 0.0


def test_fedaligns_conditions() -> None:
    from strategies.fedalign import accepts, joins

    assert joins(local_loss=1.25, global_loss=1.0, epsilon=0.25) is True
    assert joins(local_loss=1.5, global_loss=1.0, epsilon=0.25) is False
    assert accepts(local_loss=0.75, global_loss=1.0, epsilon=0.25) is True
    assert accepts(local_loss=0.5, global_loss=1.0, epsilon=0.25) is False


def test_adagds_step() -> None:
    from strategies import adagd
    from strategies.adagd import AdaGDStep

    gradients = np.array([[1.0, 0.0], [10.0, 0.3]])
    one = adagd.step(gradients=gradients, losses=np.array([1.0, 99.0]), step_size=0.1, precision=1.0)
    assert isinstance(one, AdaGDStep)
    assert (one.case, one.leaving.tolist(), one.leaving.dtype, one.stalled) == (1, [True, False], np.bool_, False)
    assert one.direction == pytest.approx([0.0, -0.3], abs=1e-12)
    two = adagd.step(gradients=gradients[:1], losses=[99.0], step_size=0.1, precision=1.0)
    assert (two.case, two.leaving.tolist(), list(two.direction)) == (2, [False], [-1.0, 0.0])  # type: ignore[arg-type]
    three = adagd.step(gradients=gradients, losses=[1.0, 1.0], step_size=0.1, precision=1.0)
    assert (three.case, three.direction) == (3, None)
    stalled = adagd.step(gradients=[[1.0], [2.0]], losses=[1.0, 99.0], step_size=0.1, precision=1.0)
    assert (stalled.stalled, list(stalled.direction)) == (True, [0.0])  # type: ignore[arg-type]
    for wrong in ({"losses": [np.nan, 1.0]}, {"gradients": [[np.inf, 0.0], [0.0, 0.0]]}):
        with pytest.raises(ValueError, match="not finite"):
            adagd.step(**({"gradients": gradients, "losses": [9.0, 9.0]} | wrong), step_size=0.1, precision=1.0)  # type: ignore[arg-type]
    assert adagd.theorem_step_size(precision=0.1, lipschitz=10.0, smoothness=1.0, agents=2) == pytest.approx(0.01)


def test_the_orthogonal_component() -> None:
    from strategies.projection import orthogonal_component

    rng = np.random.default_rng(0)
    vector, basis = rng.normal(size=50).astype(np.float32), rng.normal(size=(6, 50)).astype(np.float32)
    basis[3], basis[4] = 2 * basis[1], 0  # parallel rows and one of zeros
    left = orthogonal_component(vector=vector, basis=basis)
    assert (left.shape, left.dtype) == (vector.shape, np.float64)
    for row in basis.astype(np.float64):
        assert abs(left @ row) <= 1e-6 * np.linalg.norm(left) * np.linalg.norm(row)
    span = np.eye(3, dtype=np.float32)
    assert not orthogonal_component(vector=np.ones(3, np.float32), basis=span).any()


def round_of(number: int, num_rounds: int = 0) -> Round:
    """A round of this number."""
    return Round(model(), Members(), RoundRecord(number), num_rounds=num_rounds)


# -- settings, by keyword --------------------------------------------------------------------------------


@every_strategy
def test_the_settings_that_all_strategies_share(name: str) -> None:
    shared: dict[str, Any] = {"min_clients": 3, "round_timeout": 12.5, "seed": 7}
    if name not in ("adagd", "maxfl-adagd"):  # these need every client
        shared["clients_per_round"] = 2
    made, plain = MADE[name](**shared), MADE[name]()
    assert {key: getattr(shared_of(made), key) for key in shared} == shared
    assert (shared_of(plain).clients_per_round, shared_of(plain).min_clients) == (None, 1)


def test_the_settings_of_their_own() -> None:
    assert (MaxFL().settings.server_lr, MaxFL().settings.stabilizer) == (1.0, 1e-3)
    assert (FedALIGN().settings.epsilon, FedALIGN().settings.warmup_share) == (0.2, 0.1)
    assert FedALIGN(warmup_rounds=3).settings.warmup_rounds == 3
    assert FedALIGN(epsilon=lambda t: 1 / t).epsilon_of(round_of(4)) == 0.25
    made = AdaGD(step_size=0.25, precision=0.5)
    assert (made.settings.step_size, made.settings.precision, made.settings.slack) == (0.25, 0.5, 2.0)


def test_a_share_of_the_rounds_is_resolved_in_start_alone() -> None:
    grid = MemoryGrid({10: Volunteer("a", metrics={keys.LOSS: 1.0}), 11: Volunteer("b", metrics={keys.LOSS: 1.0})})
    with pytest.raises(ConfigError, match=r"warmup-share = 0\.5 is not allowed without start"):
        FedALIGN(warmup_share=0.5).configure_train(1, model(), ConfigRecord(), grid)
    assert list(FedALIGN(warmup_share=0).configure_train(1, model(), ConfigRecord(), grid))
    strategy = FedALIGN(warmup_share=0.5, priority_ids=["a"], evaluate_every=0)
    run(strategy, grid, 4)
    assert [strategy.warms_up(round_of(number, 4)) for number in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]


# -- Flower's own methods, with a grid that only knows node ids ------------------------------------------


@every_strategy
def test_a_bare_grid_and_mixed_replies(name: str) -> None:
    strategy, grid = MADE[name](), crowd()
    arrays, metrics = one_round(strategy, grid, 1, model(0.25))
    assert not grid.sent("query")
    assert arrays is not None
    assert list(arrays) == list(model())
    assert value_of(arrays) != 0.25
    assert np.isfinite(value_of(arrays))
    # Without a roll call a node id stands in for the client-id.
    became = {str(node): "joined" for node in (100, 101, 102)} | {"110": "sat-out", "111": "left", "112": "failed"}
    assert {
        client: "joined" if was == "refused" else was for client, was in rounds_of(strategy).record.decisions.items()
    } == became
    assert rounds_of(strategy).record.failures == {"112": "RuntimeError: out of memory"}
    assert (metrics["sat-out"], metrics["left"], metrics["failed"], metrics["surplus"]) == (1, 1, 1, 0)
    questions = list(strategy.configure_evaluate(1, arrays, told(), grid))
    assert len(questions) == 6
    measured = strategy.aggregate_evaluate(1, grid.send_and_receive(questions))
    assert measured is not None
    assert measured["loss"] >= 0
    again = [m.metadata.dst_node_id for m in strategy.configure_train(2, arrays, told(), grid)]
    assert sorted(again) == [100, 101, 102, 110, 112]


@every_strategy
def test_flowers_own_loop_runs_it(name: str) -> None:
    strategy, grid = MADE[name](), MemoryGrid(nodes(config(3)))
    result = FlowersStrategy.start(
        strategy,  # type: ignore[arg-type]
        grid,
        model(0.25),
        num_rounds=2,
        train_config=told(),
        evaluate_config=told(),
    )
    assert value_of(result.arrays) != 0.25
    assert sorted(result.train_metrics_clientapp) == sorted(result.evaluate_metrics_clientapp) == [1, 2]


@every_strategy
def test_start_runs_the_whole_loop(name: str) -> None:
    grid, strategy = MemoryGrid(nodes(config(3))), MADE[name]()
    if name == "fedalign":
        strategy = FedALIGN(epsilon=0.2, warmup_share=0.1, priority_ids=["client-0000"])
    result = strategy.start(grid=grid, initial_arrays=model(0.25), num_rounds=3, train_config=told())
    assert value_of(result.arrays) != 0.25
    assert len(grid.sent("query")) == 3
    assert rounds_of(strategy).record.server_round == 3


# -- the client's side -----------------------------------------------------------------------------------


def test_requirements_and_policies_by_name() -> None:
    from client.requirement import Fixed, Solo

    assert (REQUIREMENTS.load("solo"), REQUIREMENTS.load("fixed")) == (Solo, Fixed)
    assert Solo().settings.steps == 100
    assert [POLICIES.load(name).name for name in POLICIES.names()] == POLICIES.names()


def test_local_rules_by_name() -> None:
    names = ["sgd", "prox", "scaffold", "maml", "moreau", "gradient"]
    assert [LOCAL_RULES.load(name).name for name in names] == names


def test_minibatches() -> None:
    from fedappeal.protocol.draws import Minibatches

    drawn: NDArray[np.int64] = np.asarray(Minibatches(3, "client-0001", 7, 10, 4, 5))
    assert drawn.shape == (4, 5)
    assert sorted(drawn[:2].ravel()) == list(range(10))
    assert (drawn == np.asarray(Minibatches(3, "client-0001", 7, 10, 4, 5))).all()


def test_a_task() -> None:
    from fedappeal.tasks import load_task
    from fedappeal.tasks.task import Task

    task = load_task(config(3).task_settings())
    assert isinstance(task, Task)
    names: Sequence[str] = [name for name, _ in task.initial_model(0).named_parameters()]
    assert names == ["w"]
    assert len(task.load(2).train) == 3
    assert callable(task.loss)
    assert callable(task.metrics)


def test_a_model_of_several_arrays_is_sent_and_returned_by_name() -> None:
    arrays = ArrayRecord({"a": Array(np.zeros((2, 3), np.float32)), "b": Array(np.zeros(4))})
    grid = MemoryGrid({10: Volunteer("x", local=2.0), 11: Volunteer("y", local=4.0, examples=3)})
    result = FedAvg().start(grid, arrays, 1)
    assert {name: (a.numpy().shape, str(a.dtype), float(a.numpy().mean())) for name, a in result.arrays.items()} == {
        "a": ((2, 3), "float32", 3.5),
        "b": ((4,), "float64", 3.5),
    }


def test_a_strategy_counts_as_one_of_flowers() -> None:
    from flwr.serverapp.strategy import Strategy as FlowerStrategy

    assert isinstance(MaxFL(), FlowerStrategy)


@every_strategy
def test_a_round_refuses_the_models_that_a_strategy_cannot_train(name: str) -> None:
    """Without the run that checks it first: a strategy in somebody's own ServerApp."""
    strategy, names = MADE[name](), ["w", "bn.running_var"]
    arrays = ArrayRecord({array: Array(np.zeros(2, np.float32)) for array in names})
    try:
        strategy.check_model(names)
    except ConfigError as error:
        with pytest.raises(ConfigError, match=str(error)[:40]):
            opened(strategy, 1, arrays)
        assert name in ("adagd", "maxfl-adagd", "fedadam", "fednova", "fedau", "oracle", "mifa", "term")
    else:
        assert opened(strategy, 1, arrays).number == 1


def test_a_setting_that_all_strategies_share_is_by_default_as_in_a_run() -> None:
    run_defaults = RunConfig.parse({})
    none_in_a_run = {"clients_per_round": 0, "min_clients": 0, "mandatory_rounds": "auto"}
    for name, field in SharedSettings.model_fields.items():
        if name == "expected_clients":  # a run has all of its clients' number
            continue
        default = getattr(run_defaults, name)
        assert default == none_in_a_run.get(name, field.default), name
