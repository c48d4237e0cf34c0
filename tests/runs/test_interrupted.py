"""Ctrl-C, or a disk's error, while a run's folder is being made: the command says how the run continues."""

import errno
from pathlib import Path

import pytest

from fedappeal.record.folder import RunFolder
from fedappeal.runs.launch.observers import INTERRUPTED, RunUnfinished, resumable
from fedappeal.runs.launch.superlink import LocalProcesses
from fedappeal.runs.plan import RunPlan, swept_plans
from fedappeal.settings.config import RunConfig


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_the_folder_is_made(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    create = RunFolder.create

    def interrupted(*arguments: object) -> RunFolder:
        if when == "after":
            create(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "create", interrupted)
    plan = RunPlan.of(RunConfig.parse({"clients": 2}), path)
    with pytest.raises(RunUnfinished) as ended:
        LocalProcesses().launch(plan, None)  # type: ignore[arg-type]
    after = f"continue with: fedappeal resume {path}" if when == "after" else "no run had begun"
    assert ended.value.lines == (f"interrupted; all processes have ended; {after}",)
    assert ended.value.code == INTERRUPTED


@pytest.mark.parametrize("local", [True, False])
def test_a_folder_that_became_read_only_is_said_with_how_the_run_continues(
    local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    plan = RunPlan.of(RunConfig.parse({"clients": 2}), path)

    def run(number: int) -> None:
        def create(*arguments: object) -> RunFolder:
            raise OSError(number, "a reason")

        monkeypatch.setattr(RunFolder, "create", create)
        if local:
            LocalProcesses().launch(plan, None)  # type: ignore[arg-type]
        with resumable([plan], "all finished rounds are kept"):
            create()

    with pytest.raises(OSError, match="a reason"):
        run(errno.EROFS)  # there is nothing to continue yet
    monkeypatch.undo()
    plan.folder({})
    for number, said in ((errno.EROFS, f"; continue with: fedappeal resume {path}"), (errno.EBADF, "")):
        with pytest.raises(RunUnfinished if said else OSError) as ended:
            run(number)
        assert str(ended.value) == f"[Errno {number}] a reason{said}"


def test_a_sweep_continues_by_its_own_command(tmp_path: Path) -> None:
    plans = swept_plans({}, ["seed=0,1"], str(tmp_path / "my sweep"))
    plans[0].folder({})
    with pytest.raises(RunUnfinished) as ended, resumable(plans, "all finished rounds are kept"):
        raise KeyboardInterrupt
    again = f"continue with the same command and --out '{tmp_path}/my sweep'"
    assert ended.value.lines == (f"interrupted; all finished rounds are kept; {again}",)
