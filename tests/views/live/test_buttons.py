"""Every button of the operator's page in a real browser, first wide, then narrow, and what the SuperLink is asked."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.record.folder import RunFolder
from fedappeal.views.live.actions import SubmittedRun
from fedappeal.views.live.page import live_page
from fedappeal.views.live.view import View
from fedappeal.web.serving import PagePlace
from tests.views.comparison.recorded import a_run
from tests.views.live.browser import chromium, fits, narrow, needs_chromium, new_page
from tests.views.live.test_view import SUPERLINK, SuperLinkOfTests, a_listed_run
from tests.views.live.test_view import superlink as superlink

__all__ = ["chromium"]
pytestmark = needs_chromium
FIRST, SECOND = 17_446_744_073_709_551_615, 9_446_744_073_709_551_616
ROUNDS = [{"accuracy": 0.6 + 0.05 * n, "gm_appeal": 0.1 * n} for n in range(5)]


def test_an_operator_uses_each_button(
    chromium: Any, tmp_path: Path, superlink: SuperLinkOfTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (a_run(tmp_path / name, ROUNDS, rounds=5 * n) for n, name in ((1, "first"), (2, "second")))
    for path in (first, second):
        RunFolder.open(path).record(runtime={"kind": "submitted"})
    RunFolder.open(first).event("finished", round=5)
    RunFolder.open(second).event("round", round=6)
    for name in ("daily", "weekly"):
        (tmp_path / f"{name}.toml").write_text("clients = 3\n")
    superlink.runs = [a_listed_run(FIRST, "completed", first), a_listed_run(SECOND, "running", second)]
    stopped = []

    def stop_run(superlink: RemoteSuperLink, run_id: int) -> bool:
        stopped.append(run_id)
        return True

    monkeypatch.setattr(RemoteSuperLink, "stop_run", stop_run)
    commands: list[list[str]] = []

    def submit_detached(superlink: RemoteSuperLink, *command: str) -> str:
        commands.append([*command])
        return str(100 + len(commands))

    monkeypatch.setattr(RemoteSuperLink, "submit_detached", submit_detached)
    asked = SubmittedRun(SUPERLINK, tmp_path)
    running = RunFolder.open(second).alone()
    running.__enter__()
    with live_page(View(asked, None, SUPERLINK), PagePlace(0)) as served, new_page(chromium) as visited:
        page: Any = visited.page
        page.goto(served.url)

        def press(name: str, confirmed: bool | None = None) -> None:
            page.get_by_role("button", name=name, exact=True).click()
            if confirmed is not None:
                page.locator("#yes" if confirmed else "#no").click()

        def said(text: str) -> None:
            page.locator("#said", has_text=text).wait_for()

        page.locator("#status:text-is('running: round 6 of 10')").wait_for()
        fits(page, "operator", 1400)
        page.locator("#charts .js-plotly-plot").first.wait_for()
        tops = [
            page.locator(part).bounding_box()["y"] for part in ("#control", "#clients", "#facts", "#charts", "#runs")
        ]
        assert tops == sorted(tops), "who is there stands above the charts"
        assert page.locator("#control button:visible").all_inner_texts() == ["Stop the run", "Start a run"]
        with page.expect_popup() as report:
            page.get_by_role("link", name=f"Report of run {FIRST}").click()
        report.value.get_by_text("What came out").wait_for()
        report.value.close()

        press(f"Show run {FIRST}")
        page.locator("#status:text-is('finished after round 5 of 5')").wait_for()
        assert page.locator("#control button:visible").all_inner_texts() == ["Extend the run", "Start a run"]
        assert page.get_by_label("to round").input_value() == "10"
        page.get_by_label("to round").fill("0")
        press("Extend the run")
        said("rounds = '0' is not allowed: a whole number from 1")
        page.get_by_label("to round").fill("12")
        press("Extend the run")
        said("it continues as run 101")
        press("Show the latest run, whichever it is")
        page.locator("#status:text-is('running: round 6 of 10')").wait_for()
        assert not page.get_by_role("button", name="Show the latest run").is_visible()

        narrow(page, "operator")
        press(f"Stop run {SECOND}", confirmed=False)
        press(f"Stop run {SECOND}", confirmed=True)
        said(f"run {SECOND} was stopped")
        press("Stop the run", confirmed=False)
        press("Stop the run", confirmed=True)
        page.locator("#said:not(:text-is('…'))").wait_for()
        assert stopped == [SECOND, SECOND]
        superlink.runs = [superlink.runs[0], replace(superlink.runs[1], status="stopped")]
        running.__exit__(None, None, None)
        page.locator("#status:text-is('stopped after round 5 of 10')").wait_for()
        press("Resume the run")
        said("it continues as run 102")

        page.get_by_label("settings").select_option("weekly.toml")
        press("Start a run")
        said("run 103 was started")
        resumed, continued, (submitted, clients, out) = commands
        assert (resumed, continued) == (["resume", str(first), "--rounds", "12"], ["resume", str(second)])
        assert (submitted, clients) == ("submit", "--clients=3")
        assert re.fullmatch(rf"--out={tmp_path}/\d{{8}}-\d{{6}}-weekly", out)
        assert visited.problems == ["Failed to load resource: the server responded with a status of 409 (Conflict)"]
