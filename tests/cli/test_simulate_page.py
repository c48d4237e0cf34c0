"""`fedappeal simulate --page`: the live page of a simulation, while it runs."""

import socket
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from fedappeal.cli.command_observers import CommandObservers
from fedappeal.cli.live_page import ADDRESS
from fedappeal.cli.main import main
from fedappeal.cli.option_groups import PageOptions
from fedappeal.cli.start import start_simulations
from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import InProcess
from fedappeal.runs.plan import swept_plans
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.options import Simulation
from fedappeal.views.tracking.tracker import TrackedRun, Tracker

SMALL: dict[str, Any] = {
    **{"model": "logistic", "clients": 3, "rounds": 2, "local-steps": 2, "requirement": "fixed"},
    "participation": "always",
}


class Visiting(Tracker):
    """Visits the page when the last round is over; a run waits for its trackers."""

    name = "visiting"
    told: ClassVar[dict[str, Any]] = {}

    def begin(self, run: TrackedRun) -> str:
        self.address = run.folder / ADDRESS
        return ""

    def end(self, how: str) -> None:
        url = self.address.read_text().strip()
        with httpx.Client(follow_redirects=True, trust_env=False, timeout=30) as client:
            assert client.get(url).status_code == 200
            while not (self.told.get("rounds") and self.told["clients"]["total"]):  # before the page has looked
                self.told |= client.get(f"{url.split('?')[0]}data.json").json()
                time.sleep(0.1)


def test_a_simulation_has_a_page_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Visiting.told.clear()
    plans = swept_plans(SMALL, [], str(tmp_path / "run"))
    observers = CommandObservers({"visiting": Visiting}, page=PageOptions("0"))
    start_simulations(plans, InProcess(Simulation("auto", "cpu", "", 1)), observers)
    history = Record(tmp_path / "run").history
    shown = Visiting.told["rounds"]
    assert [(each["round"], each["accuracy"]) for each in shown] == [
        (each["round"], each["accuracy"]) for each in history
    ]
    assert len(shown) == 2
    assert (Visiting.told["clients"]["total"], Visiting.told["clients"]["counts"]) == (3, {"joined": 3})
    assert not (tmp_path / "run" / ADDRESS).exists()
    assert "the live page: http://127.0.0.1:" in capsys.readouterr().out


def test_several_runs_have_no_page(tmp_path: Path) -> None:
    plans = swept_plans(SMALL, ["seed=0,1"], str(tmp_path / "sweep"))
    with pytest.raises(ConfigError, match="page is not allowed with several runs"):
        start_simulations(plans, InProcess(Simulation("auto", "cpu", "", 1)), CommandObservers(page=PageOptions("0")))
    assert not (tmp_path / "sweep").exists()


def test_what_is_not_allowed_is_found_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for given in (["--page", port], ["--page", "here"], ["--page-published", "lab.example:80"]):
            monkeypatch.setattr(sys, "argv", ["fedappeal", "simulate", *given])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("fedappeal: page")
    assert list(tmp_path.iterdir()) == []
