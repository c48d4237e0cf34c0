"""Ctrl-C while a run's folder is being made: the command says how the run continues, where there is one."""

from pathlib import Path

import pytest

from fedappeal.record.folder import RunFolder
from fedappeal.runs.launch.observers import INTERRUPTED, RunUnfinished
from fedappeal.runs.launch.superlink import LocalProcesses
from fedappeal.runs.plan import RunPlan
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
