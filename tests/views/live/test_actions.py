"""Stop and resume: what is done, and the command where it cannot be done from here."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.views.live import actions as module
from fedappeal.views.live.actions import ForeignRun, NotDone, OwnRun, SubmittedRun

RUN = Path("/srv/my runs/first")
REMOTE = SubmittedRun(RemoteSuperLink("127.0.0.1:8000"), "ca.crt")


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
    assert REMOTE.offers("running", "submitted", RUN) == {"stop": True, "resume": False, "commands": []}
    for state in ("failed", "interrupted", "stopped"):
        assert REMOTE.offers(state, "submitted", RUN) == {"stop": False, "resume": True, "commands": []}
        assert REMOTE.offers(state, "local", RUN)["commands"][0]["command"].startswith("fedappeal resume")
    assert REMOTE.offers("finished", "submitted", RUN) == {"stop": False, "resume": False, "commands": []}


def test_stopping_says_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stop_run(address: str, run_id: int, *, root_certificates: bytes | None) -> bool:
        asked.append((address, run_id))
        return run_id == 7

    monkeypatch.setattr(module, "stop_run", stop_run)
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
