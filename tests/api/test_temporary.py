"""The folder of a run without ``out``: it goes with the object, unless it is kept."""

import gc
import os
import sys
from pathlib import Path

import pytest

import fedappeal
from fedappeal.settings.config import ConfigError
from tests.api.blobs import QUICK, Net, in_folder, losses, pairs

__all__ = ["in_folder"]
pytestmark = pytest.mark.usefixtures("in_folder")


def simulated(**more: object) -> fedappeal.Run:
    return fedappeal.simulate("fedavg", model=Net, data=pairs(), **QUICK, **more)


def test_no_folder_is_left_of_a_run_that_nobody_keeps() -> None:
    run = simulated()
    path, report = run.path, run.report()
    assert path.exists()
    assert not list(Path.cwd().iterdir())
    del run
    gc.collect()
    assert "srcdoc" in report._repr_html_()
    del report
    gc.collect()
    assert not path.parent.exists()


def test_a_kept_run_stays_and_continues() -> None:
    run = simulated()
    expected, before = losses(run), run.path
    assert run.keep("mine") is run
    gc.collect()
    assert not before.parent.exists()
    assert run.path == Path("mine").absolute()
    assert losses(run.resume(rounds=4))[:3] == expected
    with pytest.raises(ConfigError, match=r"^keep is not allowed: the run's folder stays already: .*mine'$"):
        run.keep()
    other = simulated()
    with pytest.raises(ConfigError, match=r"^path = '.*mine' is not allowed: File exists$"):
        other.keep("mine")
    assert other.keep().path.parent == Path("runs").absolute()
    assert losses(fedappeal.load(other.path)) == expected


def test_a_run_that_fails_and_a_sweep_leave_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(each: fedappeal.FinishedRound) -> None:
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        simulated(on_round=fail)
    runs = fedappeal.sweep("fedavg", model=Net, data=pairs(), seed=range(2), **QUICK)
    last = runs[1]
    assert len({run.path.parent for run in runs}) == 1
    del runs
    gc.collect()
    assert len(losses(last)) == 3
    del last
    sys.last_value = sys.last_exc = None  # type: ignore[assignment]
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_forked_child_that_ends_takes_no_folder_of_its_parents() -> None:
    run = simulated()
    if not (child := os.fork()):
        del run
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(losses(run)) == 3
