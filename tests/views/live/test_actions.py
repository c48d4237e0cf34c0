"""Stop and resume: what is done, and the command where it cannot be done from here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.settings.config import ConfigError
from fedappeal.views.live.actions import ForeignRun, NotDone, OwnRun, SubmittedRun

RUN = Path("/srv/my runs/first")
REMOTE = SubmittedRun(RemoteSuperLink("127.0.0.1:8000", None, "ca.crt"))


def test_a_run_of_another_process_has_commands_in_place_of_buttons() -> None:
    for runtime in ("local", "simulation"):
        running = ForeignRun().offers("running", runtime, RUN)
        assert (running["stop"], running["resume"]) == (False, False)
        assert "Ctrl-C" in running["commands"][0]["what"]
        [command] = ForeignRun().offers("interrupted", runtime, RUN)["commands"]
        assert command == {"what": "continue it", "command": "fedappeal resume '/srv/my runs/first'"}
    [command] = ForeignRun().offers("failed", "submitted", RUN)["commands"]
    assert command["command"] == "fedappeal resume '/srv/my runs/first' --superlink HOST:8000"
    assert ForeignRun().offers("finished", "local", RUN)["commands"] == []
    for act in (lambda: ForeignRun().stop(1), lambda: ForeignRun().resume(RUN)):
        with pytest.raises(NotDone, match="another process's"):
            act()


def test_a_run_of_a_superlink_is_stopped_and_resumed_from_the_page() -> None:
    def offered(state: str, runtime: str = "submitted") -> list[str]:
        return [name for name in ("stop", "resume", "extend") if REMOTE.offers(state, runtime, RUN)[name]]

    assert offered("running") == ["stop"]
    for state in ("failed", "interrupted", "stopped"):
        assert offered(state) == ["resume", "extend"]
        assert offered(state, "local") == []
        assert REMOTE.offers(state, "local", RUN)["commands"][0]["command"].startswith("fedappeal resume")
    assert offered("finished") == ["extend"]


def test_stopping_says_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stop_run(superlink: RemoteSuperLink, run_id: int) -> bool:
        asked.append((superlink.address, run_id))
        return run_id == 7

    monkeypatch.setattr(RemoteSuperLink, "stop_run", stop_run)
    assert REMOTE.stop(7) == "run 7 was stopped"
    assert REMOTE.stop(8) == "run 8 had already ended"
    assert asked == [("127.0.0.1:8000", 7), ("127.0.0.1:8000", 8)]
    with pytest.raises(NotDone, match="no run of this folder"):
        REMOTE.stop(0)


def done(code: int, out: str, err: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, err)


def test_resuming_is_the_command_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return done(0, "note\n123\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert REMOTE.resume(RUN) == "it continues as run 123"
    [command] = commands
    assert command[:5] == [sys.executable, "-P", "-m", "fedappeal.cli.main", "resume"]
    where = ["--superlink", "127.0.0.1:8000", "--root-certificates", "ca.crt"]
    assert command[5:] == [str(RUN), "--detach", *where]
    SubmittedRun(RemoteSuperLink("127.0.0.1:8000"), allow=("mine", ".")).resume(RUN, 40)
    more = ["--rounds", "40", "--allow", "mine", "--allow", "."]
    assert commands[1][5:] == [str(RUN), *more, "--detach", "--superlink", "127.0.0.1:8000"]


def test_a_run_is_started_from_a_settings_file_of_the_folder_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: (commands.append(command), done(0, "9\n", ""))[1]
    )
    (tmp_path / "daily.toml").write_text("clients = 3\nask-on = false\n[maxfl]\nserver-lr = 0.5\n")
    for name, text in (
        ("foreign", "strategy = 'mine:Strategy'"), ("out", "out = '/etc'"), ("bad", "rounds = -1"), ("no", "= 1"),
        ("deep", "a = " + 30_000 * "["),
    ):  # fmt: skip
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "large.toml").write_text("#" * 70_000)
    os.mkfifo(tmp_path / "pipe.toml")
    actions = SubmittedRun(RemoteSuperLink("127.0.0.1:8000"), tmp_path)
    files = ["bad.toml", "daily.toml", "deep.toml", "foreign.toml", "large.toml", "no.toml", "out.toml", "pipe.toml"]
    assert actions.offers("", "", None)["files"] == files
    assert actions.start("daily.toml") == "run 9 was started"
    [command] = commands
    assert command[4:8] == ["submit", "--clients=3", "--no-ask-on", "--set"]
    assert command[8] == "maxfl.server-lr=0.5"
    assert re.fullmatch(rf"--out={tmp_path}/\d{{8}}-\d{{6}}-daily", command[9])
    for file, said in (
        ("../daily.toml", "no run is started"), ("nowhere.toml", "no run is started"), ("out.toml", "out = '/etc'"),
        ("foreign.toml", "runs only with --allow mine"), ("bad.toml", "rounds = -1"), ("no.toml", "cannot be read"),
        ("large.toml", "at most 65536 bytes"), ("pipe.toml", "is not allowed"),
        ("deep.toml", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises((NotDone, ConfigError), match=re.escape(said)):
            actions.start(file)
    with pytest.raises(NotDone, match="no run is started"):
        REMOTE.start("daily.toml")
    assert len(commands) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [(done(2, "", "fedappeal: it has finished\n"), "fedappeal: it has finished"), (done(1, "", ""), "exit code 1")],
)
def test_where_it_cannot_be_resumed_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, given: subprocess.CompletedProcess[str], said: str
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: given)
    with pytest.raises(NotDone, match=f"^{said}$"):
        REMOTE.resume(RUN)


def test_ones_own_run_is_stopped_as_by_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        OwnRun().stop(0)
    [command] = OwnRun().offers("running", "local", RUN)["commands"]
    assert command == {"what": "continue it later", "command": "fedappeal resume '/srv/my runs/first'"}
