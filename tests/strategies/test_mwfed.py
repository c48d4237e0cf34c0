"""MW-Fed's server: multiplicative weights, the local steps that they share out, and the average weighted by steps."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from server.build import check_settings
from server.checkpoints import Checkpoint
from strategies import MWFed
from strategies.mwfed import SATISFIED, loads
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Volunteer, model, run, values_of
from tests.strategies.rounds.mixed_round import Join, answer, check_mixed

NODES = (10, 11, 12)


def asked(strategy: MWFed, server_round: int, nodes: tuple[int, ...] = NODES) -> dict[int, Message]:
    grid = MemoryGrid({node: Volunteer(str(node)) for node in nodes})
    messages = list(strategy.configure_train(server_round, model(0), ConfigRecord({"local-epochs": 7}), grid))
    grid.push_messages(messages)
    return {m.metadata.dst_node_id: m for m in messages}


def steps(messages: Mapping[int, Message]) -> list[int]:
    told = [messages[node].content.config_records[keys.CONFIG] for node in sorted(messages)]
    assert all(t["local-epochs"] == 0 and t[keys.STRATEGY] == "mwfed" for t in told)
    return [int(t["local-steps"]) for t in told]  # type: ignore[arg-type]


def report(message: Message, satisfied: float, w: float = 0.0) -> Message:
    return answer(message, Join(model(w), {SATISFIED: satisfied}))


def test_loads_by_hand() -> None:
    assert loads([0, 0, 0], 30) == [30, 30, 30]
    assert loads([1, 0, 0], 30) == [45, 22, 22]  # 90 * (1/2, 1/4, 1/4); 22.5 to even
    assert loads([3, 1, 0], 11) == [24, 6, 3]  # 33 * (8, 2, 1) / 11
    assert loads([20, 0], 5) == [10, 1]  # nobody has none
    assert loads([7], 4) == [4]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 100))
def test_a_budget_is_shared_out_by_weight(doublings: list[int], local_steps: int) -> None:
    got = loads(doublings, local_steps)
    budget = local_steps * len(doublings)
    assert min(got) >= 1
    assert budget - len(got) / 2 <= sum(got) <= budget + len(got)  # but for rounding, and the one step for everybody
    order = sorted(range(len(got)), key=lambda k: doublings[k])
    assert all(got[a] <= got[b] for a, b in pairwise(order))
    assert got == loads([d + 5 for d in doublings], local_steps)  # only ratios count
    assert got == loads([d + 10**6 for d in doublings], local_steps)  # 2^(10^6) would not fit a float


def test_a_weight_doubles_while_the_target_is_not_met() -> None:
    strategy = MWFed(local_steps=12)
    first = asked(strategy, 1)
    assert steps(first) == [12, 12, 12]
    strategy.aggregate_train(1, [report(first[10], 0), report(first[11], 1), report(first[12], 1)])
    second = asked(strategy, 2)
    assert steps(second) == [18, 9, 9]  # 36 * (2, 1, 1) / 4
    strategy.aggregate_train(2, [report(second[10], 0), report(second[11], 0), report(second[12], 1)])
    third = asked(strategy, 3)
    assert steps(third) == [21, 10, 5]  # 36 * (4, 2, 1) / 7 = 20.6, 10.3, 5.1
    _, metrics = strategy.aggregate_train(3, [report(third[10], 1), report(third[11], 0), report(third[12], 1)])
    assert metrics is not None
    assert metrics["satisfied"] == pytest.approx(2 / 3)
    assert steps(asked(strategy, 4)) == [16, 16, 4]  # (4, 4, 1) / 9: who is satisfied keeps its weight


def test_models_are_weighted_by_local_steps() -> None:
    strategy = MWFed(local_steps=12)
    first = asked(strategy, 1)
    arrays, _ = strategy.aggregate_train(
        1, [report(first[node], s, w) for node, s, w in zip(NODES, (0, 1, 1), (1, 2, 6), strict=True)]
    )
    assert values_of(arrays) == [3]
    second = asked(strategy, 2)
    arrays, _ = strategy.aggregate_train(2, [report(second[10], 1, 4), report(second[12], 1, 1)])
    assert values_of(arrays) == [3]  # (18 * 4 + 9 * 1) / 27: over those who joined


def test_who_reports_nothing_keeps_the_weight() -> None:
    strategy = MWFed(local_steps=12)
    first = asked(strategy, 1)
    strategy.aggregate_train(1, [report(first[10], 0), report(first[11], 1), report(first[12], 1)])
    second = asked(strategy, 2)
    assert steps(second) == [18, 9, 9]
    strategy.aggregate_train(2, [answer(second[10], decision=0), answer(second[11], decision=0)])  # 12: silence
    third = asked(strategy, 3)
    assert steps(third) == [18, 9, 9]
    bad = Join(ArrayRecord(), {SATISFIED: 0})  # a reply that is left out says nothing either
    strategy.aggregate_train(3, [answer(third[11], bad), report(third[12], 0.5)])
    assert rounds_of(strategy).record.count("failed") == 2
    assert steps(asked(strategy, 4)) == [18, 9, 9]


def test_clients_say_whether_their_target_is_met() -> None:
    for met in (True, False):
        measured = Measured(Evaluation(0.5, 0.5), rho=1.0, met=met)
        assert MWFed(local_steps=5).report(measured) == {SATISFIED: int(met)}


def test_the_clients_that_are_asked_together_share_a_budget() -> None:
    strategy = MWFed(local_steps=10, clients_per_round=2, evaluate_every=0)
    grid = MemoryGrid({n: Volunteer(str(n), metrics={SATISFIED: 1}) for n in range(10, 16)})
    for node in (10, 11, 12):
        grid.nodes[node] = Volunteer(str(node), decision=0)
    strategy._doublings = {"10": 3, "13": 1, "15": 2}
    run(strategy, grid, 6)
    weight = {10: 8, 11: 1, 12: 1, 13: 2, 14: 1, 15: 4}
    several = 0
    for server_round in range(1, 7):
        sent = {m.metadata.dst_node_id: m for m in grid.sent("train", server_round)}
        order, size = list(sent), 2
        while order:  # waves of 2, 4, ...
            wave, order = order[:size], order[size:]
            total = sum(weight[node] for node in wave)
            told = [int(sent[node].content.config_records[keys.CONFIG]["local-steps"]) for node in wave]  # type: ignore[arg-type]
            assert told == [max(1, round(10 * len(wave) * weight[node] / total)) for node in wave]
            size, several = 2 * size, several + bool(order)
    assert several


def test_a_round_of_mixed_replies() -> None:
    joins = [Join(model(2, 0), {SATISFIED: 1}), Join(model(0, 4), {SATISFIED: 0})]
    claims = [{SATISFIED: bad} for bad in (0.5, 2.0, -1.0)]
    check_mixed(MWFed(local_steps=5), joins, [1.0, 2.0], claims)


def test_a_reply_that_nobody_asked_for_is_left_out() -> None:
    strategy = MWFed(local_steps=5)
    late = asked(strategy, 1)[12]
    for message in asked(strategy, 2, (10, 11)).values():
        arrays, _ = strategy.aggregate_train(2, [report(late, 0, 9), report(message, 1, 2)])
        assert values_of(arrays) == [2]
        assert rounds_of(strategy).record.failures == {"12": "reply of a client that this round did not ask"}
        break


def test_the_weights_survive_a_checkpoint(tmp_path: Path) -> None:
    strategy = MWFed(local_steps=12)
    for server_round in (1, 2, 3):
        messages = asked(strategy, server_round)
        strategy.aggregate_train(server_round, [report(messages[node], int(node != 11)) for node in NODES])
    Checkpoint(3, model(0), model(0), rounds_of(strategy).state()).write(tmp_path / "checkpoint")
    resumed = MWFed(local_steps=12)
    rounds_of(resumed).restore(Checkpoint.read(tmp_path / "checkpoint").state)
    assert steps(asked(resumed, 4)) == steps(asked(strategy, 4)) == [4, 29, 4]  # 36 * (1, 8, 1) / 10
    Checkpoint(0, model(0), model(0), rounds_of(MWFed(local_steps=1)).state()).write(tmp_path / "empty")
    rounds_of(resumed).restore(Checkpoint.read(tmp_path / "empty").state)
    assert steps(asked(resumed, 5)) == [12, 12, 12]


def test_epochs_cannot_be_shared_out() -> None:
    with pytest.raises(ConfigError, match=r"^mwfed\.local-steps = 0 is not allowed: input should be greater than"):
        MWFed(local_steps=0)
    with pytest.raises(ConfigError, match=r"^mwfed\.local-steps is missing: the mean number of local steps"):
        MWFed()
    epochs = RunConfig(strategy="mwfed", local_steps=0, local_epochs=2)
    with pytest.raises(ConfigError, match="local-steps = 0 is not allowed with strategy = 'mwfed'"):
        check_settings(epochs)
