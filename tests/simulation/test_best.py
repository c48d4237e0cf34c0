"""Clients that use the best of what they have: in each engine and over a stop they are a float64 program's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedappeal
from client.blend import Blend, floating
from client.learner import Sent
from client.settings import NodeSettings
from client.state.store import DiskStore
from client.training.task_learner import TaskLearner
from fedappeal.core.requirement import Evaluation, Look, choose
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import LAYERS, SEQUENTIAL, VMAP, Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks import load_task
from fedappeal.tasks.examples import Split, halves_of
from server.build import check_real, check_settings
from server.checkpoints import settings_to_resume
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from tests.node import Node, metrics_of, participant_of
from tests.simulation.best_float64 import BIAS, WEIGHT, Client, Data, Line, rounds
from tests.simulation.workers.local import workers

__all__ = ["workers"]
SETTINGS: dict[str, Scalar] = {
    **{"task": "digits", "model": "logistic", "clients": 6, "rounds": 7, "mandatory-rounds": 2, "seed": 5},
    **{"local-steps": 6, "batch-size": 16, "learning-rate": 0.3, "judge-on": "cross-fitted", "use": "best"},
    **{"solo.steps": 60, "solo.learning-rate": 0.5, "dirichlet-alpha": 0.3},
}


ARGUMENTS: dict[str, Any] = {"task": "digits", "model": "logistic", "clients": 6, "rounds": 1}
ARGUMENTS |= {"judge_on": "cross-fitted", "use": "best"}


def config(**changed: Scalar) -> RunConfig:
    return RunConfig.parse(SETTINGS | {key.replace("_", "-"): value for key, value in changed.items()})


def expected(run: RunConfig) -> tuple[list[list[str]], Line, list[Client]]:
    last = list(rounds(run, Node(run).initial))  # type: ignore[arg-type]
    return [decisions for decisions, _, _ in last], last[-1][1], last[-1][2]


def check(path: Path, run: RunConfig) -> None:
    decisions, model, clients = expected(run)
    record = Record(path)
    assert [
        [line["decision"] for line in sorted_by_client(record, number)] for number in range(1, run.rounds + 1)
    ] == decisions
    arrays, _ = read_safetensors(path / MODEL)
    assert np.abs(arrays[WEIGHT] - model.a).max() < 1e-6
    assert np.abs(arrays[BIAS] - model.b).max() < 1e-6
    kinds = {name.split()[0] for client in clients for name in client.taken}
    assert {"own", "blend"} <= kinds, "the run has both"
    assert {"joined", "sat-out"} <= {decision for of_round in decisions for decision in of_round}


def sorted_by_client(record: Record, number: int) -> list[dict[str, str]]:
    return sorted((line for line in record.decisions if line["round"] == number), key=lambda line: line["client-id"])


@pytest.mark.parametrize("strategy", ["maxfl", "fedavg"])
@pytest.mark.parametrize(
    "how",
    [
        Simulation(SEQUENTIAL, threads=1),
        Simulation(SEQUENTIAL, threads=2),
        Simulation(LAYERS, threads=1),
        Simulation(VMAP, threads=1),
        Simulation(SEQUENTIAL, threads=1, workers=2),
    ],
    ids=["one by one", "threads", "layers", "vmap", "workers"],
)
@pytest.mark.usefixtures("workers")
def test_each_engine_is_the_float64_program(tmp_path: Path, how: Simulation, strategy: str) -> None:
    run = config(strategy=strategy)
    simulate(run, RunPlan.of(run, tmp_path / "run").folder({}), how)
    check(tmp_path / "run", run)


@pytest.mark.parametrize("mode", [SEQUENTIAL, LAYERS])
def test_a_run_that_goes_on_is_the_float64_program(tmp_path: Path, mode: str) -> None:
    run = config()
    simulate(
        changed_rounds(run, 4),
        RunPlan.of(changed_rounds(run, 4), tmp_path / "run").folder({}),
        Simulation(mode, threads=1),
    )
    more = settings_to_resume(tmp_path / "run", run.rounds)
    simulate(more, RunFolder.open(tmp_path / "run"), Simulation(mode, threads=1))
    check(tmp_path / "run", run)


def changed_rounds(run: RunConfig, number: int) -> RunConfig:
    return run.model_copy(update={"rounds": number})


def test_a_client_on_a_disk_is_the_float64_program_over_restarts_and_repeated_rounds(tmp_path: Path) -> None:
    run = config()
    node, program = Node(run, tmp_path, partition_id=2), Client(run, 2)
    node("query")
    shared = Line(*(np.asarray(node.initial[name], np.float64) for name in (WEIGHT, BIAS)))
    program.require(shared, 60, 0.5)
    for number in range(1, 7):
        node = node.restarted()
        sent = {WEIGHT: np.float32(shared.a), BIAS: np.float32(shared.b)}
        shared = Line(*(sent[name].astype(np.float64) for name in (WEIGHT, BIAS)))
        start, loss = program.judge(shared)
        model = program.trained(start, number)
        replies = [node("train", sent, server_round=number, mandatory=1) for _ in range(2)]  # the server asks again
        for reply in replies:
            told, arrays = metrics_of(reply), node.layout.unpack(reply[keys.ARRAYS])  # type: ignore[arg-type]
            assert told[APPEAL_WEIGHT] == pytest.approx(appeal_weight(loss, program.rho), abs=1e-6)
            assert np.abs(arrays[WEIGHT] - model.a).max() < 1e-6
        shared = shared.times(0.5).plus(0.5, model).plus(0.02 * (-1) ** number, Line(shared.a, shared.b))
    assert len(set(program.taken)) > 1


def look(*losses: float, sizes: tuple[int, ...] = (6, 8)) -> Look:
    return Look([Evaluation(loss, 1 - loss) for loss in losses], sizes)


def test_each_half_judges_what_the_other_chose() -> None:
    place, judged = choose([look(0.1, 0.9), look(0.3, 0.5), look(0.8, 0.2)])
    # By the first half it is model 0, whose loss on the second is 0.9; by the second model 2, with 0.8 on the first.
    assert judged.loss == pytest.approx((6 * 0.8 + 8 * 0.9) / 14)
    assert judged.score == pytest.approx(1 - judged.loss)
    assert place == 1  # 0.414; the others have 0.557 and 0.457
    one = look(0.1, 0.9)
    assert choose([one])[1] == one.whole, "where there is nothing to choose, nothing is corrected"


def test_a_whole_judges_its_own_choice_and_what_is_no_number_is_never_chosen() -> None:
    looks = [look(value, sizes=(9,)) for value in (float("nan"), 0.4, 0.3, float("inf"))]
    assert choose(looks) == (2, looks[2].parts[0])


def test_a_blend_mixes_floating_point_arrays_that_travel() -> None:
    own = {"a": np.float32([1, 2]), "count": np.int64(7)}
    shared = {"a": np.float32([3, 6]), "count": np.int64(9), "personal": np.float32([5])}
    mixed = Blend(0.25, floating({name: np.asarray(array) for name, array in own.items()}), 3).of(shared)
    assert mixed["a"].dtype == np.float32
    assert mixed["a"].tolist() == [1.5, 3.0]
    assert mixed["count"] == 9
    assert mixed["personal"] is shared["personal"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"judge_on": "held-out"}, "use = 'best' is not allowed with judge-on = 'held-out': cross-fitted"),
        ({"judge_on": "train"}, "use = 'best' is not allowed with judge-on = 'train': cross-fitted"),
        (
            {"tuning_steps": 3},
            "tuning-steps = 3 is not allowed with judge-on = 'cross-fitted' and adaptation-steps = 5",
        ),
        (
            {"tuning_steps": 3, "adaptation_steps": 0},
            "tuning-steps = 3 is not allowed with judge-on = 'cross-fitted'",
        ),
        ({"tuning_steps": 3, "judge_on": "held-out", "use": "adapted"}, "tuning-steps = 3 is not allowed"),
        ({"maxfl.tuning_steps": 2}, "maxfl.tuning-steps = 2 is not allowed with judge-on = 'cross-fitted'"),
        (
            {"strategy": "fedavg", "local_rule": "prox"},
            "is not allowed with strategy = 'fedavg' and local-rule = 'prox'",
        ),
        *(
            ({"strategy": name}, f"use = 'best' is not allowed with strategy = '{name}'")
            for name in ("ditto", "pfedme", "perfedavg", "scaffold", "adagd", "maxfl-adagd", "fedprox")
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(settings: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_settings(config(**settings))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("steps", "settings"), [(3, {"adaptation_steps": 0}), (20, {"judge_on": "train"})])
def test_tuning_alone_is_allowed(steps: int, settings: dict[str, Scalar]) -> None:
    assert check_settings(config(tuning_steps=steps, **{"judge_on": "held-out", "use": "adapted", **settings}))


def test_a_server_cannot_ask_for_tuning_beside_adaptation(tmp_path: Path) -> None:
    node = Node(config(), tmp_path)
    node("query")
    with pytest.raises(ConfigError, match="tuning-steps = 4 is not allowed with judge-on = 'cross-fitted'"):
        node("evaluate", tuning_steps=4)


def test_a_client_with_few_held_out_examples_looks_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    few = config(max_train_examples=34)
    halved, whole = (
        participant_of(run, NodeSettings(partition_id=2, device="cpu"), DiskStore(tmp_path / run.judge_on))
        for run in (few, RunConfig.parse({**few.as_config(), "judge-on": "held-out", "use": "adapted"}))
    )
    assert halved.learner.examples(keys.HELD_OUT_SPLIT) == 11
    assert halved.learner.judged_parts == (keys.HELD_OUT_SPLIT,)
    with caplog.at_level("INFO", "fedappeal.client"):
        requirement = halved.begin_run("key", Node(few).initial)
    assert "the held-out examples are fewer than 12" in caplog.text
    assert requirement.rho == whole.begin_run("key", Node(few).initial).rho


def test_another_way_of_judging_makes_another_requirement(tmp_path: Path) -> None:
    store, node = DiskStore(tmp_path), NodeSettings(partition_id=2, device="cpu")
    rhos = [
        participant_of(config(judge_on=judge_on, use="adapted"), node, store)
        .begin_run("key", Node(config()).initial)
        .rho
        for judge_on in ("held-out", "cross-fitted")
    ]
    assert rhos[0] < rhos[1], "the lowest of 21 looks is lower than what it is worth on other data"
    assert len([name for name in store.names() if name.startswith("requirement-")]) == 2


def test_halves_cost_no_more_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    measure, passed = TaskLearner.measure, {"held-out": 0, "cross-fitted": 0}

    def counted(learner: TaskLearner, arrays: Arrays, split: str, sent: Sent | None = None) -> Evaluation:
        passed[judge_on] += learner.examples(split)
        return measure(learner, arrays, split, sent)

    monkeypatch.setattr(TaskLearner, "measure", counted)
    for judge_on in passed:
        fedappeal.simulate(**{**ARGUMENTS, "judge_on": judge_on, "use": "adapted", "rounds": 2}, quiet=True)
    assert passed["cross-fitted"] == passed["held-out"] > 0


def test_halves_share_no_input() -> None:
    x = torch.arange(30.0).repeat_interleave(2)[:, None]
    halves = halves_of(Split(x, torch.zeros(60, dtype=torch.int64)))
    assert halves is not None
    one, other = ({float(value) for value in half.x.flatten()} for half in halves)  # type: ignore[union-attr]
    assert not one & other
    assert [len(half) for half in halves] == [30, 30]
    assert halves_of(Split(torch.zeros(60, 1), torch.zeros(60, dtype=torch.int64))) is None
    assert halves_of(Split(x[:11], torch.zeros(11, dtype=torch.int64))) is None


def test_the_control_shares_nothing(tmp_path: Path) -> None:
    """Each client trains alone: w_0, then 6 steps a round from its own last model."""
    run = config(strategy="fedavg", share="none", participation="always", rounds=3)
    simulate(run, RunPlan.of(run, tmp_path / "run").folder({}), Simulation(SEQUENTIAL, threads=1))
    (line,) = Record(tmp_path / "run").history[-1:]
    assert line["joined"] == 6
    scores, start = [], Node(config()).initial
    for number in range(run.clients):
        program = Client(run, number)
        alone = Line(*(start[name].astype(np.float64) for name in (WEIGHT, BIAS)))
        for server_round in range(1, 4):
            alone = program.trained(alone, server_round)
        test = Data.of(load_task(run.task_settings()).load(number).test)
        scores.append((alone.chances(test.x).argmax(1) == test.y).mean())
    assert line["accuracy"] == pytest.approx(np.mean(scores))


def test_the_control_is_for_simulations_alone() -> None:
    with pytest.raises(ConfigError, match="share = 'none' is not allowed in a run of real clients"):
        check_real(config(share="none"))
