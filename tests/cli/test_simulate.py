"""`fedappeal simulate`: what is swept, what is refused, and several runs at once."""

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedappeal.cli.option_groups import ResumeOptions
from fedappeal.cli.start import report_unused, resume_run, start_simulations
from fedappeal.core.registry import LOCAL_RULES
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.dry_round import alike
from fedappeal.runs.launch.in_process import InProcess, Machine
from fedappeal.runs.launch.observers import RunUnfinished
from fedappeal.runs.plan import RunPlan, simulate_plan, swept_plans
from fedappeal.settings.config import ConfigError
from fedappeal.simulation import engine
from fedappeal.simulation.forms.choice import Choice
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors
from fedappeal.tasks.task import Task
from server.build import Plugins
from strategies.rounds.round import RoundRecord
from tests.jobs_here import jobs_here

__all__ = ["jobs_here"]

AUTO = InProcess(Simulation("auto", threads=1))
SMALL = {"model": "logistic", "clients": 3, "rounds": 2, "local-steps": 2, "solo.steps": 2}


def test_a_sweep_is_every_combination(tmp_path: Path) -> None:
    plans = swept_plans({"rounds": 3}, ["seed=0..2,7", "strategy=maxfl,fedavg"], str(tmp_path))
    assert [(plan.config.seed, plan.config.strategy) for plan in plans] == [
        (seed, strategy) for seed in (0, 1, 2, 7) for strategy in ("maxfl", "fedavg")
    ]
    assert {plan.config.rounds for plan in plans} == {3}
    assert plans[0].path == tmp_path / "seed-0-strategy-maxfl"
    assert len({plan.path for plan in plans}) == 8
    (alone,) = swept_plans({}, [], str(tmp_path / "one"))
    assert alone.path == tmp_path / "one"


def test_a_plugins_setting_can_be_swept_beside_its_strategy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"maxfl.stabilizer": 0.01, "defect.leave-below": 0.5}
    plans = swept_plans(given, ["maxfl.server_lr=0.5,1", "strategy=maxfl,fedavg"], str(tmp_path))
    assert [plan.config.section("maxfl")["server-lr"] for plan in plans] == [0.5, 0.5, 1, 1]
    assert plans[0].path.name == "maxfl.server-lr-0.5-strategy-maxfl"
    report_unused(plans)
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "fedappeal: in 2 of 4 runs: maxfl.server-lr is not used by this run",
        "fedappeal: in 2 of 4 runs: maxfl.stabilizer is not used by this run",
        "fedappeal: in 4 of 4 runs: defect.leave-below is not used by this run",
    ]
    report_unused(swept_plans(given, [], str(tmp_path)))
    assert capsys.readouterr().err == "fedappeal: defect.leave-below is not used by this run\n"


OWN = '''
from fedappeal.core.plugins import PluginSettings
from strategies.fedavg import FedAvg


class Swept(FedAvg):
    """A strategy of the user's."""

    class Settings(PluginSettings):
        rate: float = 0.5
'''


def test_an_own_strategy_and_its_settings_can_be_swept_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweepable.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    plans = swept_plans({}, ["strategy=sweepable:Swept,fedavg", "swept.rate=0.1,0.2"], str(tmp_path))
    assert [plan.config.section("swept") for plan in plans] == [{"rate": 0.1}, {"rate": 0.2}, {}, {}]
    assert plans[0].path.name == "strategy-sweepable.Swept-swept.rate-0.1"
    report_unused(plans)
    assert capsys.readouterr().err == "fedappeal: in 2 of 4 runs: swept.rate is not used by this run\n"


@pytest.mark.parametrize(
    ("settings", "sweep", "line"),
    [
        ({}, ["seed"], "sweep = 'seed' is not allowed: KEY=VALUE,VALUE"),
        ({}, ["sead=1,2"], r"sweep = 'sead=1,2' is not allowed: .*; did you mean 'seed'\?"),
        ({}, ["maxfl.=1"], "sweep = 'maxfl.=1' is not allowed"),
        ({}, ["out=a,b"], "sweep = 'out=a,b' is not allowed: KEY=VALUE"),
        ({}, ["resume=true,false"], "sweep = 'resume=true,false' is not allowed: KEY=VALUE"),
        ({}, ["round_timeout=5,6"], "sweep = 'round_timeout=5,6' is not allowed: KEY=VALUE"),
        ({}, ["maxfl.server-lr=1,0"], "maxfl.server-lr = 0 is not allowed: input should be greater than 0"),
        ({}, ["maxfl.server-lt=1,2"], r"unknown setting 'maxfl.server-lt'; did you mean 'maxfl.server-lr'\?"),
        ({}, ["prox.proximal-mu=1,2"], "local-rule 'prox' has no settings of its own: they stand under 'fedprox'"),
        ({}, ["maxfk.server-lr=1,2"], r"unknown plug-in 'maxfk' in the settings; did you mean 'maxfl'\?"),
        ({}, ["learning-rate=0.1,-1"], "learning-rate = '-1' is not allowed"),
        ({}, ["strategy=maxfl,maxfk"], r"strategy = 'maxfk' is not allowed"),
        ({}, ["seed=2..0"], r"sweep = 'seed=2\.\.0' is not allowed: the range 2\.\.0 is empty; 0\.\.2\?"),
        ({}, ["seed=1,0..2"], "sweep = 'seed=1,0..2' is not allowed: seed-1 and seed-1 are the same run"),
        ({}, ["rounds=5", "seed=1,01"], "is not allowed: rounds-5-seed-1 and rounds-5-seed-01 are the same run"),
        ({}, ["seed=0,1", "seed=2"], "sweep = 'seed=2' is not allowed: seed is swept twice"),
        ({}, ["seed=0..999999999"], "is not allowed: at most 10000 runs"),
        ({}, ["seed=0..100", "clients=2..101"], "is not allowed: 10100 runs, at most 10000"),
        ({}, [f"seed=0..1{'0' * 30}"], "is not allowed: input should be a valid integer"),
        ({}, ["seed=0..²"], "is not allowed: input should be a valid integer"),
        ({"strategy": "adagd"}, ["clients-per-round=0,2"], "clients-per-round = 2 is not allowed"),
    ],
)
def test_what_is_not_allowed_is_one_line_before_anything_starts(
    settings: dict[str, object], sweep: list[str], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=line):
        swept_plans(settings, sweep, str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_too_many_clients_for_the_data_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    plans = swept_plans({"clients": 5000}, [], str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="clients = 5000 is not allowed"):
        start_simulations(plans, AUTO)
    assert not (tmp_path / "run").exists()


def test_a_rule_without_a_batched_form_is_said_in_the_line_about_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOCAL_RULES.load("maml"), "batched", False)
    plans = swept_plans({**SMALL, "strategy": "perfedavg", "rounds": 1}, [], str(tmp_path / "run"))
    start_simulations(plans, AUTO)
    said = "perfedavg: clients train one after another (local rule 'maml' has no batched form)"
    assert said in " ".join(capsys.readouterr().out.split())


def test_the_same_sweep_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    how, out = Simulation("sequential", threads=1), str(tmp_path / "sweep")

    def interrupt(record: RoundRecord) -> None:
        raise KeyboardInterrupt

    over, begun, _ = swept_plans(SMALL, ["seed=0..2"], out)
    simulate_plan(over, how)
    with pytest.raises(KeyboardInterrupt):
        simulate_plan(begun, how, on_round=interrupt)
    plans = swept_plans({**SMALL, "out": out}, ["seed=0..2"], out)
    assert [(plan.name, plan.resumes) for plan in plans] == [("seed-1", True), ("seed-2", False)]
    config = begun.path / "config.json"
    recorded = config.read_bytes()
    for key, wrong, line in (
        ("mode", None, "runtime: mode = None is not allowed"),
        ("evaluation-precision", "half", "evaluation-precision = 'half' is not allowed"),
        ("device", "tpu", "device = 'tpu' is not allowed"),
    ):
        values = json.loads(recorded)
        values["runtime"] |= {key: wrong}
        values["runtime"] = {name: value for name, value in values["runtime"].items() if value is not None}
        config.write_text(json.dumps(values))
        with pytest.raises(ConfigError, match=line):
            start_simulations(plans, InProcess(how))
    config.write_bytes(recorded)
    start_simulations(plans, InProcess(replace(how, mode="auto", evaluation_precision="bfloat16")))
    assert [len(Record(plan.path).history) for plan in plans] == [2, 2]
    assert json.loads((begun.path / "events.jsonl").read_text().splitlines()[-1])["event"] == "finished"
    simulate_plan(replace(begun, path=tmp_path / "whole"), how)
    whole = read_safetensors(tmp_path / "whole" / MODEL)[0]
    assert alike(read_safetensors(begun.path / MODEL)[0], whole)
    with pytest.raises(ConfigError, match=r"all runs of this sweep are over"):
        swept_plans(SMALL, ["seed=0..2"], out)
    with pytest.raises(ConfigError, match=r"its 'seed-0' is a run with rounds = 2, not 3"):
        swept_plans({**SMALL, "rounds": 3}, ["seed=0,3"], out)


def test_resume_continues_a_simulation_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    start_simulations(swept_plans(SMALL, [], str(path)), InProcess(Simulation("sequential", threads=1)))
    capsys.readouterr()
    resume_run(path, ResumeOptions(rounds=4))
    shown = capsys.readouterr().out
    assert "3 clients, 4 rounds (up to 1 mandatory)" in " ".join(shown.split())
    assert "continued after round 2" in shown
    assert "after round 4" in shown
    assert [line["round"] for line in Record(path).history] == [1, 2, 3, 4]
    how = {"mode": "sequential", "device": "cpu", "data-dir": "", "threads": 1, "resumable": True, "why": ""}
    assert Record(path).config["runtime"] == {"kind": "simulation", **how, "evaluation-precision": "float32"}
    assert "clients" not in {file.name for file in path.iterdir()}, "no process of a client was started"
    before, _ = Record(path).config, capsys.readouterr()
    with pytest.raises(ConfigError, match="device = 'tpu' is not allowed"):
        resume_run(path, ResumeOptions(rounds=5, device="tpu"))
    assert (Record(path).config, capsys.readouterr().out) == (before, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_say_how_to_continue(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(engine, "simulate", interrupted)
    with pytest.raises(RunUnfinished) as ended:
        start_simulations(swept_plans(SMALL, [], str(tmp_path / "run")), AUTO)
    assert ended.value.code == 130
    again = f"continue with: fedappeal resume {tmp_path / 'run'}"
    assert ended.value.lines == (f"interrupted; all finished rounds are kept; {again}",)


def test_how_clients_train_is_asked_once_for_runs_that_train_alike_and_each_keeps_to_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def chosen_mode(plugins: Plugins, simulation: Simulation, task: Task) -> Choice:
        asked.append(plugins.config.batch_size)
        return (
            Choice("vmap", "2.0 times as fast as one after another")
            if plugins.config.batch_size == 8
            else Choice("layers", "")
        )

    found: list[tuple[str, str]] = []

    def started(launcher: InProcess, plans: list[RunPlan], simulations: list[Simulation], observers: Any) -> None:
        found.extend((how.mode, how.why[:3]) for how in simulations)

    monkeypatch.setattr("fedappeal.simulation.engine.choose_mode", chosen_mode)
    monkeypatch.setattr(InProcess, "_simulate_several", started)
    plans = swept_plans(SMALL, ["batch-size=8,16", "seed=0,1", "maxfl.server-lr=0.5,1"], str(tmp_path))
    start_simulations(plans, InProcess(AUTO.simulation, Machine(2)))
    assert asked == [8, 16]
    assert found == [("vmap", "2.0")] * 4 + [("layers", "")] * 4
    assert " ".join(capsys.readouterr().out.split()) == (
        "maxfl: clients train side by side by vmap (2.0 times as fast as one after another) "
        "maxfl: clients train side by side by batched layers"
    )


@pytest.mark.usefixtures("jobs_here")
def test_several_runs_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = swept_plans(SMALL, ["seed=0,1"], str(tmp_path))
    start_simulations(plans, InProcess(AUTO.simulation, Machine(2)))
    lines = [Record(plan.path).history for plan in plans]
    assert [len(of_run) for of_run in lines] == [2, 2]
    assert lines[0] != lines[1]
    shown = capsys.readouterr().out
    assert "seed-0: after round 2" in shown
    assert "clients train side by side" in shown
