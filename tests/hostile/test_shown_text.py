"""Promise: what a client, a server or a file says is shown as plain, short text, and never ends a command."""

import io
import json
import string
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from client.process.serve import Event, _Client
from client.settings import NodeSettings
from fedappeal.api.run import Run
from fedappeal.cli.main import main
from fedappeal.protocol.foreign_text import printable
from fedappeal.record.follower import Follower, WatchedRun
from fedappeal.record.lines import EVENTS, HISTORY
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.views.terminal.progress import several_runs
from fedappeal.views.terminal.view import RunView
from server.build import run_plugins
from strategies.rounds.round import RoundRecord
from tests.hostile.federation import Attacker, enrolled, federation, is_roll_call

LONGEST_REASON, LONGEST_ID = 500, 64
NASTY = (
    "[/nope]",
    "[bold red]x[/bold red][link=file:///etc/passwd]y[/link]",
    "\x1b[2J\x1b]0;owned\x07\x1b[31m",
    "a\nb\r\nround 99 of 99\x85\u2028c",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "\x9b31m\x90\x00\x7f",
    "\ud800",
    ":warning: :skull:",
    "%s %n {0} {task.fields}",
    "x" * 4_999_999,  # an odd number: twice "x" is a field that protobuf skips, so an even one is an empty answer
    "[" * 100_000,
)
TEXTS = st.one_of(
    st.sampled_from([text for text in NASTY if len(text) < 1000]),
    st.text(max_size=80),
    st.text(string.printable + "[]/\\\x1b\x9b\u202e\u200b\x00", max_size=80),
)


def check(shown: str) -> None:
    """Check what a terminal got: lines without control characters, none of them endless."""
    for line in shown.split("\n"):
        assert line.isprintable(), line
        assert len(line) <= 1000, len(line)


def view_of(path: Path, **options: Any) -> tuple[RunView, io.StringIO]:
    out = io.StringIO()
    config = RunConfig.parse({"clients": 2, "rounds": 3})
    plan = RunPlan.of(config, path)
    return RunView(plan, Console(file=out, width=100, highlight=False), data="", **options), out


def lines_with(text: str) -> list[tuple[str, dict[str, Any]]]:
    """What a run tells its operator, with a text of others wherever there is one."""
    figures = {"joined": 1, "sat_out": 0, "left": 0, "seconds": 0.1, "mandatory": False}
    told = {"decisions": {text: "joined", "b": text}, "failures": {text: text, "b": f"survey: {text}"}}
    return [
        ("event", {"event": "enrolled", "enrolled": 1}),
        ("event", {"event": "refused", "node": text, "client": text, "reason": text}),
        ("event", {"event": "refused", "node": text, "reason": text}),
        ("event", {"event": "waiting", "enrolled": 1, "wanted": 2, "seconds": text, "silent": [text, text]}),
        ("event", {"event": "resumed", "round": 1}),
        ("event", {"event": "round", "round": 1}),
        ("round", {"round": 1, **figures, **told}),
    ]


@given(TEXTS)
def test_the_operators_view_shows_text_as_text(text: str) -> None:
    view, out = view_of(Path("runs") / "x", name_of=lambda client: f"{text} ({client})")
    for kind, line in lines_with(text):
        view.watch(kind, line)
    view.summary = lambda: None  # type: ignore[method-assign]
    check(out.getvalue())
    if "[" in text and len(text) <= LONGEST_ID:  # nothing is taken for markup, so nothing is missing
        shown = " ".join(out.getvalue().split())
        assert " ".join(f"{printable(text)}: {printable(text)}".split()) in shown


@pytest.mark.parametrize("text", NASTY)
def test_long_and_nasty_texts_are_bounded(text: str, tmp_path: Path) -> None:
    view, out = view_of(tmp_path)
    for kind, line in lines_with(text):
        view.watch(kind, line)
    check(out.getvalue())
    assert len(out.getvalue()) < 5000


@given(TEXTS)
def test_a_run_called_so_is_shown_while_it_runs(text: str) -> None:
    for terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, width=100, highlight=False, force_terminal=terminal, color_system=None)
        job = RunPlan(run_plugins(RunConfig.parse({})), Path("no-such-folder"), text)
        with several_runs([job], console) as shown:
            shown.update()
            shown.ended(0, text)
        if not terminal:
            check(out.getvalue())


@pytest.mark.parametrize("text", NASTY)
def test_what_is_stored_is_clean_and_short(text: str, tmp_path: Path) -> None:
    folder = RunPlan.of(RunConfig.parse({}), tmp_path / "run").folder({})
    folder.event("refused", node="1", client=text, reason=text)
    record = RoundRecord(1)
    record.fail("alice", text)
    record.add_failure("alice", text)
    assert len(record.failures["alice"]) <= LONGEST_REASON
    assert record.failures["alice"].isprintable()
    stored = (folder.path / EVENTS).read_text()
    assert len(stored) < 3 * LONGEST_REASON + 200
    (event,) = Record(folder.path).events
    assert event["reason"].isprintable()
    assert len(event["reason"]) <= LONGEST_REASON


@pytest.mark.parametrize("text", NASTY)
def test_a_folder_that_others_wrote_is_read_clean(text: str, tmp_path: Path) -> None:
    folder = RunPlan.of(RunConfig.parse({"clients": 2}), tmp_path / "run").folder({})
    raw = {"time": 0, "event": "finished", "round": 1, "reason": text}
    (folder.path / EVENTS).write_text(json.dumps(raw) + "\n")
    line = {"round": 1, "joined": 1, "sat_out": 0, "left": 0, "seconds": 0.1, "asked": 1, "bytes_up": 1}
    line |= {"bytes_down": 1, "evaluated": 1, "failures": {text: text}, "decisions": {}}
    (folder.path / HISTORY).write_text(json.dumps(line) + "\n")
    view, out = view_of(folder.path)
    follower = WatchedRun(folder.path, view.watch)
    follower._follower = Follower(folder.path, decisions=True)
    follower.read()
    view.summary()
    check(out.getvalue())
    assert repr(Run(folder.path, None, None, None)).isprintable()  # type: ignore[arg-type]


class HostileSuperLink(BaseHTTPRequestHandler):
    """Answers everything with one text."""

    text = b""
    status = 500

    def do_POST(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def superlink() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), HostileSuperLink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "{}:{}".format(*server.server_address)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [200, 403, 500])
@pytest.mark.parametrize("text", [text for text in NASTY if "\ud800" not in text])
def test_what_a_hostile_superlink_tells_the_operator(
    superlink: str, text: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(HostileSuperLink, "text", text.encode())
    monkeypatch.setattr(HostileSuperLink, "status", status)
    monkeypatch.setattr(sys, "argv", ["fedappeal", "federation", "runs", "--superlink", superlink])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr()
    check(said.out + said.err)
    assert len(said.err) < LONGEST_REASON + 200


@pytest.mark.parametrize("text", NASTY)
def test_what_a_hostile_server_tells_a_clients_owner(text: str, tmp_path: Path) -> None:
    told: list[Event] = []
    client = object.__new__(_Client)
    client.on_event = told.append
    client.node = NodeSettings()
    client._folder = tmp_path
    for kind in ("failed", "dropped", "waiting", "given-up"):
        client._tell(kind, f"round 3: {text}")
    assert [event.kind for event in told] == ["failed", "dropped", "waiting", "given-up"]
    assert all(event.text.isprintable() and len(event.text) <= LONGEST_REASON for event in told)


def nasty_replies(texts: list[str]) -> Any:
    """An attacker that enrols under a decent name and fails with one nasty text after another."""
    said = iter(texts * 10)

    def answer(attacker: Attacker, message: Message) -> Message | None:
        if is_roll_call(message):
            return enrolled(message)
        return Message(Error(1, next(said)), reply_to=message)

    return answer


def test_the_operators_command_lives_with_a_nasty_client(tmp_path: Path) -> None:
    """Real: four attackers, two of them with names that are markup and control characters."""
    texts = [text for text in NASTY if "\ud800" not in text]  # protobuf has no half characters
    with federation(tmp_path, attackers=2, clients=4, rounds=4, start_timeout=30.0, min_clients=3) as attacked:
        attacked.attack(nasty_replies(texts))
        attacked.attack(lambda attacker, message: enrolled(message, "[/nope]\x1b[2J" + "y" * 5_000_000))
        attacked.run(300.0)
    view, out = view_of(attacked.path)
    follower = WatchedRun(attacked.path, view.watch)
    follower._follower = Follower(attacked.path, decisions=True)
    follower.read()
    view.summary()
    check(out.getvalue())
    assert "[/nope]" in out.getvalue()
    assert [line["joined"] for line in attacked.history] == [2, 2, 2, 2]
    stored = (attacked.path / HISTORY).read_text() + (attacked.path / EVENTS).read_text()
    assert len(stored) < 50_000
    assert stored.isascii()
    assert not any(code in attacked.log for code in ("\x1b[2J", "\x1b[31m", "\x1b]0;"))
