"""`fedappeal simulate`: what is swept, what is refused, and several runs at once."""

from pathlib import Path

import pytest

from fedappeal.cli.simulate import plan, start_simulations
from fedappeal.protocol.config import ConfigError
from server.run_folder import HISTORY, read_lines

SMALL = {"model": "logistic", "clients": 3, "rounds": 2, "local-steps": 2, "warmup-steps": 2}


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


@pytest.mark.parametrize(
    ("settings", "sweep", "line"),
    [
        ({}, ["seed"], "sweep = 'seed' is not allowed: KEY=VALUE,VALUE"),
        ({}, ["sead=1,2"], "sweep = 'sead=1,2' is not allowed"),
        ({}, ["learning-rate=0.1,-1"], "learning-rate = '-1' is not allowed"),
        ({}, ["strategy=maxfl,maxfk"], r"strategy = 'maxfk' is not allowed"),
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


@pytest.mark.e2e
def test_several_runs_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = plan(SMALL, ["seed=0,1"], str(tmp_path))
    start_simulations(jobs, 2, "auto", "cpu", "", 1)
    lines = [read_lines(job.path / HISTORY) for job in jobs]
    assert [len(of_run) for of_run in lines] == [2, 2]
    assert lines[0] != lines[1]
    shown = capsys.readouterr().out
    assert "seed-0: after round 2" in shown
    assert "clients train side by side" in shown
