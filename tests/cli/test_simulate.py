"""`fedappeal simulate`: what is swept, what is refused, and several runs at once."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedappeal.cli.resume import ResumeOptions, resume_run
from fedappeal.cli.simulate import plan, start_simulations
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation import engine
from fedappeal.simulation.engine import Simulation
from fedappeal.simulation.forms.choice import Choice

SMALL = {"model": "logistic", "clients": 3, "rounds": 2, "local-steps": 2, "solo.steps": 2}


def test_a_sweep_is_every_combination(tmp_path: Path) -> None:
    jobs = plan({"rounds": 3}, ["seed=0..2,7", "strategy=maxfl,fedavg"], str(tmp_path))
    assert [(job.config.seed, job.config.strategy) for job in jobs] == [
        (seed, strategy) for seed in (0, 1, 2, 7) for strategy in ("maxfl", "fedavg")
    ]
    assert {job.config.rounds for job in jobs} == {3}
    assert jobs[0].path == tmp_path / "seed-0-strategy-maxfl"
    assert len({job.path for job in jobs}) == 8
    (alone,) = plan({}, [], str(tmp_path / "one"))
    assert alone.path == tmp_path / "one"


def test_a_plugins_setting_can_be_swept_beside_its_strategy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"maxfl.stabilizer": 0.01, "defect.leave-below": 0.5}
    jobs = plan(given, ["maxfl.server_lr=0.5,1", "strategy=maxfl,fedavg"], str(tmp_path))
    assert [job.config.section("maxfl")["server-lr"] for job in jobs] == [0.5, 0.5, 1, 1]
    assert jobs[0].path.name == "maxfl.server-lr-0.5-strategy-maxfl"
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "fedappeal: in 2 of 4 runs: maxfl.server-lr is not used by this run",
        "fedappeal: in 2 of 4 runs: maxfl.stabilizer is not used by this run",
        "fedappeal: in 4 of 4 runs: defect.leave-below is not used by this run",
    ]
    plan(given, [], str(tmp_path))
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
    jobs = plan({}, ["strategy=sweepable:Swept,fedavg", "swept.rate=0.1,0.2"], str(tmp_path))
    assert [job.config.section("swept") for job in jobs] == [{"rate": 0.1}, {"rate": 0.2}, {}, {}]
    assert jobs[0].path.name == "strategy-sweepable.Swept-swept.rate-0.1"
    assert capsys.readouterr().err == "fedappeal: in 2 of 4 runs: swept.rate is not used by this run\n"


@pytest.mark.parametrize(
    ("settings", "sweep", "line"),
    [
        ({}, ["seed"], "sweep = 'seed' is not allowed: KEY=VALUE,VALUE"),
        ({}, ["sead=1,2"], r"sweep = 'sead=1,2' is not allowed: .*; did you mean 'seed'\?"),
        ({}, ["maxfl.=1"], "sweep = 'maxfl.=1' is not allowed"),
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
        plan(settings, sweep, str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_too_many_clients_for_the_data_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    jobs = plan({"clients": 5000}, [], str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="clients = 5000 is not allowed"):
        start_simulations(jobs, 1, "auto", "cpu", "", 1)
    assert not (tmp_path / "run").exists()


def test_a_rule_without_a_batched_form_is_said_in_the_line_about_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = plan({**SMALL, "strategy": "perfedavg", "rounds": 1}, [], str(tmp_path / "run"))
    start_simulations(jobs, 1, "auto", "cpu", "", 1)
    said = "perfedavg: clients train one after another (local rule 'maml' has no batched form)"
    assert said in capsys.readouterr().out.splitlines()


def test_resume_continues_a_simulation_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    start_simulations(plan(SMALL, [], str(path)), 1, "sequential", "cpu", "", 1)
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


def test_ctrl_c_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "simulate", interrupted)
    with pytest.raises(SystemExit) as ended:
        start_simulations(plan(SMALL, [], str(tmp_path / "run")), 1, "auto", "cpu", "", 1)
    assert ended.value.code == 130
    assert capsys.readouterr().err == (
        f"interrupted; all finished rounds are kept; continue with: fedappeal resume {tmp_path / 'run'}\n"
    )


def test_how_clients_train_is_asked_once_for_runs_that_train_alike_and_each_keeps_to_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def chosen_mode(config: RunConfig, simulation: Simulation) -> Choice:
        asked.append(config.batch_size)
        return (
            Choice("vmap", "2.0 times as fast as one after another")
            if config.batch_size == 8
            else Choice("layers", "")
        )

    found: list[tuple[str, str]] = []

    def started(jobs: Any, at_once: int, simulations: list[Simulation], *shown: Any) -> None:
        found.extend((how.mode, how.why[:3]) for how in simulations)

    monkeypatch.setattr("fedappeal.simulation.engine.choose_mode", chosen_mode)
    monkeypatch.setattr("fedappeal.cli.simulate._several", started)
    jobs = plan(SMALL, ["batch-size=8,16", "seed=0,1", "maxfl.server-lr=0.5,1"], str(tmp_path))
    start_simulations(jobs, 2, "auto", "cpu", "", 1)
    assert asked == [8, 16]
    assert found == [("vmap", "2.0")] * 4 + [("layers", "")] * 4
    assert capsys.readouterr().out.splitlines() == [
        "maxfl: clients train side by side by vmap (2.0 times as fast as one after another)",
        "maxfl: clients train side by side by batched layers",
    ]


@pytest.mark.e2e
def test_several_runs_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = plan(SMALL, ["seed=0,1"], str(tmp_path))
    start_simulations(jobs, 2, "auto", "cpu", "", 1)
    lines = [Record(job.path).history for job in jobs]
    assert [len(of_run) for of_run in lines] == [2, 2]
    assert lines[0] != lines[1]
    shown = capsys.readouterr().out
    assert "seed-0: after round 2" in shown
    assert "clients train side by side" in shown
