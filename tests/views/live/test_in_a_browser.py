"""The live page in a real browser: numbers, width, texts and pages of others; a paused client rests."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from client.page.app import volunteer_app
from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import HISTORY, PARTICIPATION
from fedappeal.record.reader import Record
from fedappeal.views.live.actions import ForeignRun
from fedappeal.views.live.live_run import LiveRun
from fedappeal.views.live.page import live_page
from fedappeal.views.live.view import View
from fedappeal.web.serving import PagePlace
from fedappeal.web.serving import serve_page as serving
from strategies.rounds.exchange.exchange import NO_ANSWER
from tests.e2e.conftest import Marked
from tests.views.comparison.recorded import a_run
from tests.views.live.browser import check_accessible, chromium, needs_chromium, new_page, picture

__all__ = ["chromium"]
pytestmark = needs_chromium
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
LINES = [
    {"accuracy": 0.5 + 0.01 * n, "gm_appeal": 0.03 * n, "loss": 2.0 / n, "joined": 2 - n % 2, "sat_out": n % 2}
    | {"served": 0.02 * n}
    for n in range(1, 31)
]


class Stopped(ForeignRun):
    """A run that a page can stop."""

    def __init__(self) -> None:
        self.times = 0

    def offers(self, state: str, runtime: str, path: Path | None) -> dict[str, object]:
        return {**super().offers(state, runtime, path), "stop": True}

    def stop(self, run_id: int) -> str:
        self.times += 1
        return "run 7 was stopped"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run under way of thirty rounds with a client whose name is markup, and reasons of the same kind."""
    path = a_run(tmp_path / "run", [], strategy="maxfl", rounds=40)
    folder = RunFolder.open(path)
    for number, (client, examples) in enumerate({"anna": 60, "bert": 75, MARKUP: 20}.items()):
        folder.event("enrolled", client=client, node=str(number), enrolled=number + 1, examples=examples)
    folder.event("refused", node="9", client=MARKUP, reason=f"reason {MARKUP}")
    for n, line in enumerate(LINES, 1):
        folder.event("round", round=n)
        second = "joined" if line["joined"] == 2 else "sat-out"
        third = "absent" if n % 3 else "failed"
        folder.append(PARTICIPATION, pack_decisions(n, {"anna": "joined", "bert": second, MARKUP: third}))
        counts = {"round": n, "asked": 3, "left": 0, "bytes_up": 500_000 + n, "bytes_down": 10**6}
        counts |= {"absent": int(n % 3 > 0), "failed": int(n % 3 == 0)}
        why = NO_ANSWER if n % 3 else f"ValueError: {MARKUP}"
        folder.append(HISTORY, {**counts, **line, "seconds": 1.25, "failures": {MARKUP: why}})
    with folder.alone():
        yield path


def shown_rounds(page: object) -> list[dict[str, float]]:
    """What the table of rounds shows: by round, the values behind its cells."""
    rows = page.eval_on_selector_all(
        "#rounds tbody tr",
        "rows => rows.map(row => [...row.cells].map(cell => cell.dataset.value))",
    )
    keys = [
        "round",
        "joined",
        "sat_out",
        "left",
        "absent",
        "failed",
        "gm_appeal",
        "accuracy",
        "bytes_up",
        "bytes_down",
        "seconds",
    ]
    return [{key: float(value) for key, value in zip(keys, row, strict=True) if value} for row in rows]


def test_a_page_says_that_a_look_failed_until_one_does_not(
    chromium: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_page(View(ForeignRun(), run), PagePlace(0)) as served, new_page(chromium) as visited:
        page = visited.page
        page.goto(served.url)
        page.wait_for_selector("#rounds tbody tr")
        for what, name in ((LiveRun, "read"), (View, "news")):  # an answer says so, or is an error
            with monkeypatch.context() as ill:
                ill.setattr(what, name, lambda *_: 1 / 0)
                page.wait_for_selector("#lost:has-text('What is new cannot be read')")
            page.wait_for_selector("#lost", state="hidden")
        assert len(shown_rounds(page)) == len(Record(run).history)


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_the_page_shows_the_history_and_fits(chromium: Any, run: Path, width: int, dark: bool) -> None:
    with live_page(View(ForeignRun(), run), PagePlace(0)) as served, new_page(chromium, dark, width) as visited:
        page = visited.page
        page.goto(served.url)
        assert page.url == f"http://{served.address}/"  # the token is not left in the address
        page.wait_for_selector("#rounds tbody tr")
        history = Record(run).history
        assert shown_rounds(page) == [
            {key: line[key] for key in shown} for line, shown in zip(history[::-1], shown_rounds(page), strict=True)
        ]
        page.wait_for_selector(".js-plotly-plot .main-svg")
        page.locator(".js-plotly-plot").nth(5).wait_for()
        picture(page, f"live-{width}-{'dark' if dark else 'light'}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        check_accessible(page)
        assert page.text_content("#status") == "running: round 30 of 40"
        assert page.text_content("[data-fact='GM-Appeal'] dd") == f"{history[-1]['gm_appeal']:.3f}"
        # A round that comes is told without a reload.
        RunFolder.open(run).append(HISTORY, {"round": 31, "joined": 3, "seconds": 1.5})
        page.wait_for_selector("#rounds tbody tr[data-round='31']")
        assert shown_rounds(page)[0] == {"round": 31, "joined": 3, "seconds": 1.5}
        # Nothing was loaded from another machine, and nothing complained.
        assert {re.match(r"\w+://[^/]+", address)[0] for address in visited.requests} <= {
            f"http://{served.address}", "blob:http://" + served.address
        }  # fmt: skip
        assert visited.problems == []
        # Names for those who do not see: each chart, picture and region has one.
        unnamed = "nodes => nodes.filter(node => !node.getAttribute('aria-label')).length"
        assert page.eval_on_selector_all("[role=img], [role=region], progress", unnamed) == 0
        # Texts of others are texts.
        assert MARKUP in page.text_content("#clients")
        assert f"reason {MARKUP}" in page.text_content("#refused")
        assert f"ValueError: {MARKUP}" in page.text_content("#failures")
        assert page.eval_on_selector_all("main img, main b, main [onerror]", "nodes => nodes.length") == 0


@contextlib.contextmanager
def foreign_page(content: str) -> Iterator[str]:
    """Serve a page of another origin, on another port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ATTACK = """<!doctype html><title>attack</title>
<form id="form" method="post" action="http://ADDRESS/stop" target="inside"><input name="run" value=""></form>
<iframe name="inside"></iframe><iframe id="frame" src="http://ADDRESS/"></iframe>
<script>
const tries = ["POST", "GET"].map(method => fetch("http://ADDRESS/stop", { method, credentials: "include",
  mode: "no-cors" }).then(() => "sent", () => "failed"));
tries.push(fetch("http://ADDRESS/data.json", { credentials: "include" }).then(() => "READ", () => "failed"));
document.getElementById("form").submit();
Promise.all(tries).then(done => setTimeout(() => { document.title = JSON.stringify(done); }, 1000));
</script>"""


def test_a_page_of_others_in_the_same_browser_gets_nowhere(chromium: Any, run: Path) -> None:
    """The operator is logged in; a foreign page on another port asks with the operator's cookies."""
    actions = Stopped()
    with live_page(View(actions, run), PagePlace(0)) as served, new_page(chromium) as visited:
        page = visited.page
        page.goto(served.url)
        page.wait_for_selector("#stop:not([hidden])")
        for address in (served.address, served.address.replace("127.0.0.1", "localhost")):
            with foreign_page(ATTACK.replace("ADDRESS", address)) as attacker:
                page.goto(attacker)
                page.wait_for_function("document.title.startsWith('[')")
                assert json.loads(page.title())[2] == "failed"
        assert actions.times == 0
        page.goto(f"http://{served.address}/")
        page.click("#stop")
        page.click("#no")
        assert actions.times == 0
        page.click("#stop")
        page.click("#yes")
        page.wait_for_selector("#said:text-is('run 7 was stopped')")
        assert actions.times == 1


def test_charts_that_are_newer_than_what_the_page_was_told_say_no_older_round(chromium: Any, run: Path) -> None:
    """As for who opens a page that was closed for many rounds: what it is told first is what was read last."""

    def over(number: int) -> None:
        RunFolder.open(run).append(PARTICIPATION, pack_decisions(number, {"anna": "joined"}))
        line = {"accuracy": 0.9, "gm_appeal": 0.9, "loss": 0.1, "seconds": 1.0}
        RunFolder.open(run).append(HISTORY, {"round": number, "asked": 3, "joined": 3, **line})

    with live_page(View(ForeignRun(), run), PagePlace(0)) as served, new_page(chromium) as visited:
        over(31)
        over(32)
        page: Any = visited.page
        page.goto(served.url)
        page.locator(".js-plotly-plot").nth(5).wait_for()
        page.locator("#rounds tbody tr[data-round='32']").wait_for()
        over(33)
        page.locator("#rounds tbody tr[data-round='33']").wait_for()
        assert not [title for title in page.locator("#charts h3").all_inner_texts() if "to round 30" in title]


def test_without_its_token_and_by_another_name_there_is_no_page(chromium: Any, run: Path) -> None:
    with live_page(View(ForeignRun(), run), PagePlace(0)) as served, new_page(chromium) as visited:
        page = visited.page
        port = served.address.rpartition(":")[2]
        assert page.goto(f"http://{served.address}/").status == 403
        assert page.goto(f"http://{served.address}/?token={'x' * 43}").status == 403
        # As by DNS rebinding: a foreign name that leads to this machine (every name below localhost does).
        assert page.goto(f"http://rebound.localhost:{port}/?token={served.token}").status == 403
        assert "run" not in page.text_content("body")


@pytest.mark.e2e
def test_a_client_paused_from_its_page_is_seen_resting_and_the_run_is_stopped_from_the_page(
    chromium: Any, marked: Marked, tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    fedappeal = [sys.executable, "-m", "fedappeal.cli.main"]
    options = ["--clients", "3", "--rounds", "100000", "--round-timeout", "4", "--participation", "always"]
    local = marked.start(*fedappeal, "local", *options, "--page", "0", "--out", str(folder), log=log, warm=True)
    try:
        url = _address(log, local)
        assert (folder / "page-address").read_text().strip() == url
        assert (folder / "page-address").stat().st_mode & 0o777 == 0o600
        with new_page(chromium) as visited:
            page = visited.page
            page.goto(url)
            page.wait_for_selector("#rounds tbody tr")
            page.wait_for_selector("[data-fact='connected'] dd:has-text('3')")
            state = folder / "clients" / "0001"
            with serving(volunteer_app(state), PagePlace(0)) as owners:
                volunteers = chromium.new_page()
                volunteers.goto(owners.url)
                volunteers.wait_for_selector("#runs article:has-text('maxfl on digits')")
                volunteers.get_by_role("button", name="Pause").click()
                volunteers.get_by_text("paused: nothing is worked on").wait_for()
                picture(volunteers, "volunteer-run")
                volunteers.close()
            page.wait_for_selector("tr[data-client$='0001'][data-state='resting']")
            page.wait_for_selector("tr[data-client$='0000'][data-state='joined']")
            page.locator(".js-plotly-plot").nth(5).wait_for()
            picture(page, "live-run")
            assert "1 resting" in page.text_content("#counts")
            reset = marked.run(*fedappeal, "client", "reset", "--state-dir", str(state), warm=True)
            assert reset.returncode == 0
            page.wait_for_selector("tr[data-client$='0001'][data-state='joined']")
            page.click("#stop")
            page.click("#yes")
            page.wait_for_selector("#lost:not([hidden])")
            shown = {line["round"]: line for line in shown_rounds(page)}
            history = Record(folder).history
            assert len(shown) >= 3
            for line in history[-len(shown) :]:
                if line["round"] in shown:  # the last one may have come after the page's end
                    assert {key: line[key] for key in shown[line["round"]]} == shown[line["round"]]
            assert all(f"http://{served(url)}/" in address for address in visited.requests)
        assert local.wait(60) == 130
        assert "continue with: fedappeal resume" in log.read_text()
        assert not (folder / "page-address").exists()
    finally:
        if local.poll() is None:
            local.send_signal(signal.SIGINT)
            local.wait(60)


def served(url: str) -> str:
    """The HOST:PORT of an address."""
    return url.split("/")[2]


def _address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    found = threading.Event()
    for _ in range(600):
        if match := re.search(r"the live page: (http://\S+)", log.read_text()):
            return match[1]
        assert process.poll() is None, log.read_text()
        found.wait(0.1)
    raise AssertionError(log.read_text())
