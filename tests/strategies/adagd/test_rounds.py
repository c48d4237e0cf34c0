"""ADA-GD's server through Flower messages: what it waits for, what it keeps, and when it ends."""

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from strategies import AdaGD, adagd
from strategies.adagd.strategy import ALL_LEFT, CASE_3, STALLED
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Watch, intake, model, run, values_of
from tests.strategies.adagd.agents import Agent, constant, reply

# eps = 1, eta = 0.5: D is F - |g| / 2 <= 2
STAYS = constant("stays", 9.0, 0.0)


def server(**settings: object) -> AdaGD:
    return AdaGD(**({"step_size": 0.5, "precision": 1.0, "evaluate_every": 0} | settings))  # type: ignore[arg-type]


def asked(strategy: AdaGD, sent: ArrayRecord, count: int) -> list[Message]:
    """Open a round with bare nodes and return its messages, in the order of the nodes."""
    grid = MemoryGrid({10 + k: constant(str(k), 9.0, 0.0) for k in range(count)})
    messages = list(strategy.configure_train(1, sent, ConfigRecord(), grid))
    grid.push_messages(messages)
    return sorted(messages, key=lambda m: m.metadata.dst_node_id)


def pair(lengths: tuple[float, float] = (0.5, 0.5)) -> MemoryGrid:
    return MemoryGrid({10 + k: constant(f"c{k}", 9.0, length) for k, length in enumerate(lengths)})


def arrays_of(values: NDArray[np.float64], names: str = "abc") -> ArrayRecord:
    """Eleven values as arrays of different shapes and dtypes, in the order of ``names``."""
    arrays = {"a": values[:6].reshape(2, 3).astype(np.float32), "b": values[6:10], "c": values[10:].reshape(())}
    return ArrayRecord({name: Array(arrays[name]) for name in names})


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_round_is_one_step_in_whatever_order_replies_come(seed: int, agents: int, order: object) -> None:
    rng = np.random.default_rng(seed)
    start, gradients, losses = rng.normal(size=11), rng.normal(size=(agents, 11)), rng.uniform(1, 5, agents)
    gradients[:, :6] = gradients[:, :6].astype(np.float32)
    expected = adagd.step(gradients, losses, 0.5, 1.0)

    strategy, record = server(), arrays_of(start)
    messages = asked(strategy, record, agents)
    replies = [
        reply(message, arrays_of(gradient, "cba"), decision=1, loss=loss)
        for message, gradient, loss in zip(messages, gradients, losses, strict=True)
    ]
    order.shuffle(replies)  # type: ignore[attr-defined]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert metrics is not None
    assert metrics["case"] == expected.case
    assert metrics["leaving"] == expected.leaving.sum()
    assert metrics["agents_loss"] == pytest.approx(losses.mean())
    if expected.direction is None or expected.stalled:
        assert arrays is None
        assert bool(rounds_of(strategy).finished)
        return
    assert arrays is not None
    assert metrics["direction_norm"] == pytest.approx(np.linalg.norm(expected.direction))
    moved = np.concatenate([arrays[name].numpy().ravel() for name in "abc"])
    np.testing.assert_allclose(moved, start + 0.5 * expected.direction, atol=1e-6)
    assert {name: (a.shape, a.dtype) for name, a in arrays.items()} == {
        name: (a.shape, a.dtype) for name, a in record.items()
    }


def test_clients_are_asked_for_gradient_and_loss() -> None:
    (message,) = asked(server(), model(1), 1)
    told = message.content.config_records[keys.CONFIG]
    assert told[keys.LOCAL_RULE] == "gradient"
    assert told[keys.STRATEGY] == "adagd"
    assert server().report(Measured(Evaluation(0.75, 0.5), rho=1.0, met=True)) == {"loss": 0.75}


def mixed(messages: list[Message]) -> list[Message]:
    """Two good gradients, one that leaves, one that sits out, and one reply for each thing that can be wrong."""
    m = iter(messages)
    return [
        reply(next(m), model(0.5, 0), decision=1, loss=9.0),
        reply(next(m), model(0, 0.5), decision=1, loss=7.0),
        reply(next(m), decision=-1),
        reply(next(m), decision=0),
        Message(Error(2, "out of memory"), reply_to=next(m)),
        Message(RecordDict(), reply_to=next(m)),
        reply(next(m), decision=1, loss=9.0),
        reply(next(m), model(7, 7), decision=1),
        reply(next(m), model(7, 7), decision=1, loss=float("nan")),
        reply(next(m), model(7, np.inf), decision=1, loss=9.0),
        reply(next(m), model(np.nan, 7), decision=1, loss=1.0),
        reply(next(m), model(7, 7, 7), decision=1, loss=9.0),
        reply(next(m), ArrayRecord({"v": Array(np.zeros(2, np.float32))}), decision=1, loss=9.0),
        reply(next(m), ArrayRecord({"w": Array(np.zeros(2))}), decision=1, loss=9.0),
    ]


@pytest.mark.parametrize("backwards", [False, True])
def test_mixed_replies(backwards: bool) -> None:
    for on_missing, expected in (("wait", None), ("proceed", [1 - 0.125, 1 - 0.125])):  # 0.5 * (0.25, 0.25)
        strategy = server(on_missing=on_missing)
        replies = mixed(asked(strategy, model(1, 1), 14))
        arrays, metrics = strategy.aggregate_train(1, replies[::-1] if backwards else replies)
        assert arrays is None if expected is None else values_of(arrays) == pytest.approx(expected)
        assert metrics is not None
        counts = {name: metrics[name] for name in ("joined", "left", "sat-out", "failed", "missing", "leaving")}
        assert counts == {"joined": 2, "left": 1, "sat-out": 1, "failed": 10, "missing": 11, "leaving": 0}
        assert metrics["agents_loss"] == 8.0
        assert not rounds_of(strategy).finished
        assert all("\n" not in reason for reason in rounds_of(strategy).record.failures.values())


def test_an_empty_round_keeps_the_model() -> None:
    for on_missing in ("wait", "proceed"):
        strategy = server(on_missing=on_missing)
        asked(strategy, model(1), 2)
        arrays, metrics = strategy.aggregate_train(1, [])
        assert arrays is None
        assert metrics is not None
        assert metrics["missing"] == 2
        assert not rounds_of(strategy).finished


def test_bare_nodes_that_are_gone_are_not_expected() -> None:
    strategy, grid = server(), pair()
    for nodes, missing in (([10, 11], 0), ([11, 12], 0), ([12], 0)):
        grid.nodes = {node: constant(str(node), 9.0, 0.5) for node in nodes}
        messages = list(strategy.configure_train(1, model(1), ConfigRecord(), grid))
        assert len(messages) == len(nodes)
        arrays, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))
        assert metrics is not None
        assert metrics["missing"] == missing
        assert values_of(arrays) == [0.75]


def test_it_waits_for_a_client_that_is_offline() -> None:
    grid = pair()
    away = grid.nodes[11]
    watch = Watch(before={2: lambda: grid.nodes.pop(11), 3: lambda: grid.nodes.update({11: away})})
    _, watch = run(server(round_timeout=60.0), grid, 3, watch)
    assert watch.models == [[-0.25], [-0.25], [-0.5]]
    assert [r.metrics["missing"] for r in watch.records] == [0, 1, 0]
    # Its place in the round was kept open until the deadline, and nobody computed a gradient in vain.
    assert watch.records[1].seconds == pytest.approx(60.0, abs=0.5)
    assert grid.asked(2) == []
    assert "case" not in watch.records[1].metrics


def test_it_goes_on_as_soon_as_the_client_is_back() -> None:
    grid = pair()
    away, sleep = grid.nodes[11], grid.clock.sleep

    def until(seconds: float) -> None:
        sleep(seconds)
        if grid.clock() >= 20:
            grid.nodes[11] = away

    grid.clock.sleep = until  # type: ignore[method-assign]
    _, watch = run(server(), grid, 2, Watch(before={2: lambda: grid.nodes.pop(11)}))
    assert watch.models == [[-0.25], [-0.5]]
    assert watch.records[1].seconds == pytest.approx(20, abs=0.5)


def test_a_silent_client_is_waited_for_in_every_round() -> None:
    grid = pair()
    agent = grid.nodes[11]
    assert isinstance(agent, Agent)
    watch = Watch(
        before={2: lambda: setattr(agent, "silent", True), 4: lambda: setattr(agent, "silent", False)},
    )
    _, watch = run(server(round_timeout=30.0), grid, 4, watch)
    assert watch.models == [[-0.25], [-0.25], [-0.25], [-0.5]]
    assert [r.metrics["missing"] for r in watch.records] == [0, 1, 1, 0]
    assert [r.seconds for r in watch.records] == pytest.approx([0, 30, 30, 0], abs=0.5)


def test_a_client_of_unusable_answers_is_not_waited_for_after_the_second() -> None:
    def run_of(answers: list[float], strategy: AdaGD, first_round: int = 1) -> tuple[list[list[float]], list[float]]:
        """Two honest clients, and one whose loss in each round is this."""
        losses = iter(answers)
        liar = Agent("liar", lambda w: next(losses), lambda w: np.zeros(1))
        grid = MemoryGrid({10: constant("c0", 9.0, 0.5), 11: constant("c1", 9.0, 0.5), 12: liar})
        _, watch = run(strategy, grid, first_round + len(answers) - 1, first_round=first_round)
        return watch.models, [record.metrics["missing"] for record in watch.records]

    nan, strategy = float("nan"), server()
    assert run_of([nan, nan, nan, nan], strategy) == ([[0.0], [0.0], [-0.25], [-0.5]], [1, 1, 0, 0])
    resumed = server()
    rounds_of(resumed).restore(rounds_of(strategy).state())
    assert run_of([nan], resumed, first_round=5)[1] == [0]
    # The second failure is in round 3; it then owes four good answers, and after the third failure eight.
    assert run_of([nan, 9.0, nan, nan, *[9.0] * 7, nan], server())[1] == [1, 0, 1, *[0] * 9]
    # Four good answers after two failures: waited for again.
    assert run_of([nan, nan, *[9.0] * 4, nan], server())[1] == [1, 1, 0, 0, 0, 0, 1]


def test_proceed_goes_on_with_those_that_answer() -> None:
    grid = pair(lengths=(0.5, 0.25))
    watch = Watch(before={2: lambda: grid.nodes.pop(11)})
    _, watch = run(server(on_missing="proceed"), grid, 2, watch)
    assert watch.models == [[pytest.approx(-0.1875)], [pytest.approx(-0.4375)]]  # means 0.375, then 0.5
    assert [r.metrics["missing"] for r in watch.records] == [0, 1]


def test_a_client_that_left_is_no_longer_expected() -> None:
    leaver = Agent("leaver", lambda w: 9.0 + w[0], lambda w: np.array([0.5]), precision=8.8)
    grid = MemoryGrid({10: constant("c0", 9.0, 0.5), 11: leaver})
    _, watch = run(server(), grid, 3, Watch(before={3: lambda: grid.nodes.pop(11)}))
    assert [r.decisions.get("leaver") for r in watch.records] == ["joined", "left", None]
    assert watch.models == [[-0.25], [-0.5], [-0.75]]
    assert [r.metrics["missing"] for r in watch.records] == [0, 0, 0]


ENDS = [
    ([constant("a", 1.0, 1.0, 0.0), constant("b", 1.0, 0.0, 1.0)], CASE_3),
    ([constant("a", 1.0, 1.0, 0.0), constant("b", 9.0, 2.0, 0.0)], STALLED),
    ([constant("a", 9.0, 1.0, 0.0), constant("b", 9.0, -1.0, 0.0)], STALLED),
    ([Agent(n, lambda w: 0.5, lambda w: w, precision=1.0) for n in "ab"], ALL_LEFT),
]


@pytest.mark.parametrize(("agents", "reason"), ENDS)
def test_the_run_ends_with_its_reason_and_the_model_as_it_was(agents: list[Agent], reason: str) -> None:
    def fresh() -> MemoryGrid:
        return MemoryGrid({10 + k: Agent(a.name, a.loss, a.gradient, a.precision) for k, a in enumerate(agents)})

    strategy = server()
    result, watch = run(strategy, fresh(), 5, arrays=model(1, 2))
    assert rounds_of(strategy).finished == reason
    assert len(watch.records) == 1
    assert values_of(result.arrays) == [1.0, 2.0]

    resumed = server()
    rounds_of(resumed).restore(rounds_of(strategy).state())
    assert rounds_of(resumed).finished == reason
    _, watch = run(resumed, fresh(), 9, arrays=model(1, 2), first_round=2)
    assert watch.records == []


@pytest.mark.parametrize("on_missing", ["wait", "proceed"])
def test_an_end_needs_everybody(on_missing: str) -> None:
    # What the silent client would have said may be another case: one that is far off, or a way out.
    for agents, _ in ENDS[:2]:
        late = constant("late", 9.0, 0.0, 1.0)
        late.silent = True
        grid = MemoryGrid({10 + k: agent for k, agent in enumerate([*agents, late])})
        strategy = server(on_missing=on_missing, round_timeout=5.0)
        _, watch = run(strategy, grid, 2, arrays=model(1, 2))
        assert watch.models == [[1.0, 2.0]] * 2
        assert not rounds_of(strategy).finished


def test_only_the_gradients_of_those_predicted_to_leave_are_kept() -> None:
    size, agents, leaving = 200_000, 30, 2
    strategy = server()
    sent = model(*np.zeros(size))
    messages = asked(strategy, sent, agents)
    begun = intake(strategy, 1, sent)

    def replies() -> Iterator[Message]:
        for k, message in enumerate(messages):
            gradient = np.zeros(size, np.float32)
            gradient[k] = 0.5
            yield reply(message, ArrayRecord({"w": Array(gradient)}), decision=1, loss=1.0 if k < leaving else 9.0)

    tracemalloc.start()
    for message in replies():
        member = rounds_of(strategy).members.of_node(message.metadata.src_node_id)
        assert member is not None
        begun.take(member, message)
    del message
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4 * size * (leaving + 2) * 1.2  # the gradients of D, and one sum in float64
    assert peak < 4 * size * (leaving + 2 + 6)  # and the reply at hand, as it is made
    arrays = begun.close()
    assert arrays is not None
    assert rounds_of(strategy).record.metrics["leaving"] == leaving
    assert not arrays["w"].numpy()[:leaving].any()


def test_a_model_that_a_gradient_step_cannot_train_is_refused_before_anybody_is_asked() -> None:
    for arrays, line in (
        ({"w": np.zeros(2, np.float32), "bn.running_mean": np.zeros(2, np.float32)}, "BatchNorm .*: bn "),
        ({"flat": np.zeros(2, np.float32), "flat-int64": np.zeros(1, np.int64)}, "array 'flat-int64' of dtype int64"),
    ):
        record = ArrayRecord({name: Array(a) for name, a in arrays.items()})
        grid = pair()
        start: Callable[..., object] = server().start
        with pytest.raises(ConfigError, match=line):
            start(grid, record, 1)
        assert grid.sent("train") == []
