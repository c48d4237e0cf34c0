"""FedALIGN's whole loop: warm-up, F of the model that is sent, who has priority, who is asked, what is carried."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

import strategies.rounds.exchange.exchange
from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from server.checkpoints import Checkpoint
from strategies import FedAvg
from strategies.fedalign import FedALIGN
from strategies.rounds.exchange.exchange import NO_ANSWER
from strategies.rounds.strategy import rounds_of
from tests.grid import MemoryGrid, Watch, model, run
from tests.strategies.fedalign.aligned import (
    EPSILON,
    GLOBAL_LOSS,
    MATCH_ON,
    PRIORITY,
    Client,
    counts,
    numbers,
)


def grid_of(*clients: Client) -> MemoryGrid:
    return MemoryGrid({10 + k: client for k, client in enumerate(clients)})


def four() -> list[Client]:
    """Priority at 1 and 3 (twice the data), and two others: near at 2, far at 9. F(w) = (|w - 1| + 2 |w - 3|) / 3."""
    return [Client("a", 1, True), Client("b", 3, True, examples=2), Client("c", 2), Client("d", 9)]


def test_rounds_by_hand() -> None:
    grid = grid_of(*four())
    # Round 1 warms up: a and b alone, (1 + 2 * 3) / 3 = 7/3. Round 2: F(7/3) = (4/3 + 2 * 2/3) / 3 = 8/9; c's loss is
    # 1/3, 5/9 below F; d's is 20/3, so d is silent; p_c = 1/3: (7/3 + 1/3 * 2) / (4/3) = 9/4.
    _, watch = run(FedALIGN(epsilon=0.6, warmup_rounds=1), grid, 2)
    assert watch.models == [pytest.approx([7 / 3]), pytest.approx([9 / 4])]
    assert [counts(r) for r in watch.records] == [(2, 0, 0, 0), (2, 1, 1, 0)]
    names = ("global_loss", "epsilon", "theta", "rho", "theta_mean", "rho_mean")
    # F(0) = (1 + 2 * 3) / 3, as a and b report it with their updates
    assert numbers(watch.records[0], *names) == pytest.approx((7 / 3, 0.6, 1, 0, 1, 0))
    assert numbers(watch.records[1], *names) == pytest.approx((8 / 9, 0.6, 3 / 4, 1 / 4, 7 / 8, 1 / 8))
    assert [r.decisions for r in watch.records] == [
        {"a": "joined", "b": "joined"},
        {"a": "joined", "b": "joined", "c": "joined", "d": "sat-out"},
    ]


def test_the_priority_clients_test_data_taken_together_is_measured_apart() -> None:
    # At 7/3, a's loss is 4/3 and accuracy 0, b's, with twice the data, 2/3 and 1/3; all four: 0, 1/3, 2/3 and 0.
    _, watch = run(FedALIGN(warmup_rounds=1), grid_of(*four()), 1)
    found = numbers(watch.records[0], "priority_loss", "priority_accuracy", "accuracy")
    assert found == pytest.approx((8 / 9, 2 / 9, 1 / 4))


def test_a_client_that_the_model_suits_too_well_is_refused_and_did_not_fail() -> None:
    # Round 2 as above, with epsilon = 5/9 less a hair: c, 5/9 below F, trains in vain.
    _, watch = run(FedALIGN(epsilon=0.55, warmup_rounds=1), grid_of(*four()), 2)
    assert watch.models[1] == pytest.approx([7 / 3])
    assert counts(watch.records[1]) == (2, 0, 1, 1)
    assert watch.records[1].decisions["c"] == "refused"
    assert watch.records[1].failures == {}
    line = watch.records[1].as_line()
    assert (line["asked"], line["joined"], line["sat_out"], line["refused"], line["failed"]) == (4, 2, 1, 1, 0)


def test_a_client_that_should_have_been_silent_is_refused() -> None:
    clients = four()
    clients[3].obeys = False
    _, watch = run(FedALIGN(epsilon=0.6, warmup_rounds=1), grid_of(*clients), 2)
    assert watch.models[1] == pytest.approx([9 / 4])
    assert counts(watch.records[1]) == (2, 1, 0, 1)


@pytest.mark.parametrize(
    ("share", "rounds", "warm"), [(0.1, 20, 2), (0.1, 5, 1), (0.07, 100, 7), (0, 3, 0), (1, 3, 3)]
)
def test_only_priority_clients_are_asked_while_the_run_warms_up(share: float, rounds: int, warm: int) -> None:
    grid = grid_of(*four())
    run(FedALIGN(warmup_share=share, evaluate_every=0), grid, rounds)
    asked = [set(grid.asked(r)) for r in range(1, rounds + 1)]
    assert asked == [{10, 11}] * warm + [{10, 11, 12, 13}] * (rounds - warm)


def test_without_warm_up_a_client_joins_by_the_model_it_is_sent() -> None:
    # F(0) = 7/3: c's loss 2 is 1/3 below, d's 9 far above.
    _, watch = run(FedALIGN(epsilon=0.4, warmup_rounds=0), grid_of(*four()), 1)
    assert counts(watch.records[0]) == (2, 1, 1, 0)


def test_f_is_asked_of_the_priority_clients_about_the_very_model_that_is_sent() -> None:
    clients = four()
    _, watch = run(FedALIGN(epsilon=0.6, warmup_rounds=1, evaluate_every=0), grid_of(*clients), 3)
    for server_round, (w,) in ((2, watch.models[0]), (3, watch.models[1])):
        f = (abs(w - 1) + 2 * abs(w - 3)) / 3
        for client in clients:
            told = client.told("train", server_round)
            assert told[GLOBAL_LOSS] == pytest.approx(f, abs=1e-6)
            assert (told[EPSILON], told[MATCH_ON], told[keys.STRATEGY]) == (0.6, "loss", "fedalign")
            assert told[PRIORITY] == int(client.priority)
    assert [c.told("evaluate", 2)[keys.SPLIT] for c in clients[:2]] == [keys.TRAIN_SPLIT] * 2
    kinds = [m.metadata.message_type for c in clients[2:] for m in c.got]
    assert kinds.count("evaluate") == 2  # the end of the run: F is not asked of the others
    assert GLOBAL_LOSS not in clients[0].told("train", 1)


@pytest.mark.parametrize(("match_on", "said"), [("loss", 0.75), ("error", 0.4)])
def test_a_client_reports_what_is_compared_and_whether_it_has_priority(match_on: Any, said: float) -> None:
    strategy, evaluation = FedALIGN(match_on=match_on), Evaluation(0.75, 0.6)
    for priority in (True, False):
        measured = Measured(evaluation, 1.0, met=True, priority=priority, told={"match-on": match_on})
        assert strategy.report(measured) == {keys.LOSS: pytest.approx(said), "priority": int(priority)}


def test_where_only_priority_clients_are_asked_there_is_no_survey() -> None:
    for strategy, clients in (
        (FedALIGN(warmup_rounds=3, evaluate_every=0), four()),
        (FedALIGN(evaluate_every=0), four()[:2]),
    ):
        grid = grid_of(*clients)
        run(strategy, grid, 3)
        assert len(grid.sent("evaluate")) == len(clients)  # at the end of the run


def test_a_stale_f_is_that_of_the_model_before() -> None:
    clients = four()
    grid = grid_of(*clients)
    _, watch = run(FedALIGN(epsilon=100, warmup_rounds=0, global_loss="stale", evaluate_every=0), grid, 3)
    assert GLOBAL_LOSS not in clients[2].told("train", 1)  # nothing is known yet
    # F(0) = 7/3; the first model is (1 + 2 * 3 + 2 + 9) / 5 = 18/5, F = (2.6 + 2 * 0.6) / 3
    assert clients[2].told("train", 2)[GLOBAL_LOSS] == pytest.approx(7 / 3)
    assert clients[2].told("train", 3)[GLOBAL_LOSS] == pytest.approx(3.8 / 3)
    assert [r.metrics["global_loss"] for r in watch.records] == pytest.approx([7 / 3, 7 / 3, 3.8 / 3])
    assert len(grid.sent("evaluate")) == 4  # no survey: the end of the run
    run(FedALIGN(warmup_rounds=2, global_loss="stale"), grid_of(*(warm := four())), 2)
    assert GLOBAL_LOSS not in warm[0].told("train", 2)  # no client compares losses in warm-up


def test_with_accuracy_as_the_proxy() -> None:
    clients = [Client("a", 0.5, True), Client("b", 3, True), Client("c", 0.9), Client("d", 4), Client("e", 0.25)]
    # Errors of the model 0: 0.5 and 1 (not 3), so F = 0.75; 0.9, 1 and 0.25
    _, watch = run(FedALIGN(epsilon=0.2, warmup_rounds=0, match_on="error"), grid_of(*clients), 1)
    assert watch.records[0].metrics["global_loss"] == pytest.approx(0.75)
    became = {"a": "joined", "b": "joined", "c": "joined", "d": "sat-out", "e": "refused"}
    assert watch.records[0].decisions == became
    assert watch.models == [pytest.approx([(0.5 + 3 + 0.9) / 3])]


def test_epsilon_may_be_a_function_of_the_round() -> None:
    clients = four()
    _, watch = run(FedALIGN(epsilon=lambda t: 1 / t, warmup_rounds=0), grid_of(*clients), 3)
    assert [r.metrics["epsilon"] for r in watch.records] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [clients[3].told("train", t)[EPSILON] for t in (1, 2, 3)] == pytest.approx([1, 1 / 2, 1 / 3])


@pytest.mark.parametrize("global_loss", ["fresh", "stale"])
def test_the_two_ends_of_epsilon_are_fedavg(global_loss: Any) -> None:
    rounds = 4
    everybody = run(FedAvg(mandatory_rounds=0), grid_of(*four()), rounds, train_config=ConfigRecord({MATCH_ON: ""}))
    clients = [dataclasses.replace(c, obeys=False) for c in four()]
    for epsilon, expected in ((math.inf, everybody[1].models), (-1e-6, [[pytest.approx(7 / 3)]] * rounds)):
        for members in (clients, four()):
            strategy = FedALIGN(epsilon=epsilon, warmup_rounds=0, global_loss=global_loss)
            assert run(strategy, grid_of(*members), rounds)[1].models == expected


def test_the_operators_list_goes_before_what_clients_ask_for() -> None:
    clients = four()
    _, watch = run(FedALIGN(epsilon=-1, warmup_rounds=1, priority_ids=["d", "c"]), grid_of(*clients), 2)
    assert watch.records[0].decisions == {"c": "joined", "d": "joined"}
    assert [c.told("train", 2)[PRIORITY] for c in clients] == [0, 0, 1, 1]
    assert watch.models == [[5.5], [5.5]]


def test_what_a_client_claims_with_its_update_does_not_count() -> None:
    class Pretender(Client):
        def _reply(self, message: Any, metrics: Any, records: Any) -> Any:
            return super()._reply(message, metrics | ({keys.PRIORITY: 1} if keys.LOSS in metrics else {}), records)

    clients = [Client("a", 1, True), Pretender("b", 9, obeys=False)]
    _, watch = run(FedALIGN(epsilon=0.5, warmup_rounds=0), grid_of(*clients), 1)
    assert watch.models == [[1.0]]
    assert watch.records[0].decisions == {"a": "joined", "b": "refused"}


def test_a_round_samples_once_and_one_without_priority_clients_leaves_the_model() -> None:
    clients = [Client("a", 1, True), *(Client(f"n{k}", 50) for k in range(5))]
    grid = grid_of(*clients)
    _, watch = run(FedALIGN(epsilon=0.5, warmup_rounds=0, clients_per_round=2, seed=1), grid, 12)
    assert all(len(grid.asked(r)) == 2 for r in range(1, 13))  # nobody is asked in place of a silent one
    with_a = [10 in grid.asked(r) for r in range(1, 13)]
    assert {True, False} == set(with_a)
    before = [0.0]
    for record, after, has_a in zip(watch.records, watch.models, with_a, strict=True):
        assert after == ([1.0] if has_a else before)
        assert record.metrics["priority_joined"] == int(has_a)
        assert ("theta" in record.metrics) == has_a
        before = after


def test_a_priority_client_that_does_not_answer_the_survey_does_not_use_up_the_round() -> None:
    clients = four()
    clients[1].answers = ("query", "train")
    _, watch = run(FedALIGN(epsilon=2, warmup_rounds=0, round_timeout=60), grid_of(*clients), 1)
    (record,) = watch.records
    assert record.metrics["global_loss"] == 1.0  # F_a(0) alone
    assert record.decisions["c"] == "joined"
    assert record.failures == {"b": f"survey: {NO_ANSWER}"}


@pytest.mark.parametrize("most", [None, 0.5])
def test_models_are_held_only_where_clients_were_told_no_f(
    most: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies.rounds.exchange.exchange, "PULLED_AT_ONCE", 4)
    clients = [Client("a", 1, True), *(Client(f"n{k:02}", 1) for k in range(20))]
    for global_loss, held in (("fresh", range(1, 5)), ("stale", range(20, 22))):
        grid = grid_of(*clients)
        settings: Any = {"global_loss": global_loss, "max_non_priority_weight": most}
        _, watch = run(FedALIGN(epsilon=1, warmup_rounds=0, **settings), grid, 1)
        assert watch.records[0].metrics["accepted"] == 20
        assert grid.held in held


def test_a_limited_weight_stays_under_its_limit_where_priority_clients_fail() -> None:
    # b holds 8 of the 12 priority examples and does not answer TRAIN; p_c = min(30 / 12, 0.5): (1 + 2 / 2) / 1.5.
    # d's 4 examples are under the limit and count as 4/12 whoever fails: (1 + 0.5 * 2 + 1.5 / 3) / (1.5 + 1/3)
    for others, expected in (([], 2 / 1.5), ([Client("d", 1.5, examples=4)], 2.5 / (1.5 + 1 / 3))):
        clients = [
            Client("a", 1, True, examples=4), Client("b", 3, True, examples=8, answers=("query", "evaluate")),
            Client("c", 2, examples=30), *others,
        ]  # fmt: skip
        strategy = FedALIGN(epsilon=9, warmup_rounds=0, max_non_priority_weight=0.5)
        _, watch = run(strategy, grid_of(*clients), 1)
        assert watch.models == [pytest.approx([expected])]


def test_updates_that_match_are_lost_where_no_priority_client_comes_back() -> None:
    clients = [Client("a", 1, True, answers=("query", "evaluate")), Client("b", 2)]
    for most in (None, 0.5):
        strategy = FedALIGN(epsilon=9, warmup_rounds=0, max_non_priority_weight=most)
        _, watch = run(strategy, grid_of(*clients), 1)
        assert watch.models == [[0.0]]
        assert watch.records[0].decisions == {"a": "absent", "b": "refused"}
        assert counts(watch.records[0]) == (0, 0, 0, 1)


class Killed(Exception):
    pass


@pytest.mark.parametrize("global_loss", ["fresh", "stale"])
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(global_loss: Any, tmp_path: Path) -> None:
    def strategy() -> FedALIGN:
        return FedALIGN(epsilon=1, global_loss=global_loss, clients_per_round=3, seed=5)

    file, first, watch = tmp_path / "checkpoint", strategy(), Watch()

    def kill() -> None:
        Checkpoint(4, model(0), model(*watch.models[-1]), rounds_of(first).state()).write(file)
        raise Killed

    watch.after[4] = kill
    with pytest.raises(Killed):
        run(first, grid_of(*four()), 8, watch)
    saved, second = Checkpoint.read(file), strategy()
    rounds_of(second).restore(saved.state)
    _, rest = run(second, grid_of(*four()), 8, arrays=saved.arrays, first_round=5)
    _, whole = run(strategy(), grid_of(*four()), 8)
    assert watch.models + rest.models == whole.models
    for resumed, unbroken in zip(rest.records, whole.records[4:], strict=True):
        assert resumed.metrics == unbroken.metrics
        assert resumed.decisions == unbroken.decisions


def test_a_run_waits_for_priority_clients_it_knows_and_for_no_others() -> None:
    away = grid_of(*four())

    def leave() -> None:
        del away.nodes[10], away.nodes[11]

    watch = Watch(before={2: leave})
    run(FedALIGN(warmup_rounds=3, evaluate_every=0), away, 2, watch)
    assert watch.records[1].seconds == pytest.approx(60, abs=0.5)
    assert (watch.records[1].decisions, watch.models[1]) == ({}, watch.models[0])


@pytest.mark.parametrize("warmup_rounds", [0, 3])
def test_a_run_without_a_priority_client_ends_after_its_roll_call(warmup_rounds: int) -> None:
    nobody = "none of the 4 clients that enrolled"
    for ids, line in (
        ("zed,anna", f"fedalign.priority-ids = 'anna,zed' is not allowed: {nobody} has such a client-id"),
        ("", f"fedalign.priority-clients: {nobody} asks for priority; at least one has to"),
    ):
        grid = grid_of(*(dataclasses.replace(client, priority=bool(ids)) for client in four()))
        strategy = FedALIGN(warmup_rounds=warmup_rounds, priority_ids=filter(None, ids.split(",")))
        with pytest.raises(ConfigError) as error:
            run(strategy, grid, 3)
        assert str(error.value) == line
        assert not grid.sent("train")
    one_of_them = FedALIGN(warmup_rounds=warmup_rounds, priority_ids=["zed", "d"])
    assert run(one_of_them, grid_of(*four()), 1)[1].models == [[9.0]]  # d's, from which the others are far


def test_the_local_rule_is_left_to_the_run() -> None:
    for config, rule in (({}, "sgd"), ({keys.LOCAL_RULE: "prox", "fedprox.proximal-mu": 0.5}, "prox")):
        clients = four()
        run(FedALIGN(warmup_rounds=0), grid_of(*clients), 1, train_config=ConfigRecord(dict(config)))
        told = clients[2].told("train", 1)
        assert told[keys.LOCAL_RULE] == rule
        assert {k: told[k] for k in config} == config
