"""The SuperLink's container: killed, it continues what was under way; told to end, it does not."""

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedappeal.containers import superlink
from fedappeal.containers.superlink import noted_end
from fedappeal.federation.continuing import to_continue
from tests.federation.conftest import Client
from tests.ports import free_port


def test_only_a_process_that_was_killed_left_runs_to_continue(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    with noted_end(database) as was_killed:
        assert not was_killed
        to_continue(database).write_text("5\n")
        killed = noted_end(database)
        assert killed.__enter__(), "a second process, of which the first is never heard again"
    with noted_end(database) as was_killed:
        assert not was_killed, "it ended as it was told to"
    assert list(tmp_path.iterdir()) == [], "nor does it leave runs to a later one"
    with pytest.raises(SystemExit), noted_end(database):
        sys.exit("the disk is full")
    with suppress(KeyboardInterrupt), noted_end(database) as was_killed:
        assert was_killed
        raise KeyboardInterrupt
    with noted_end(database) as was_killed:
        assert not was_killed
    with noted_end(None) as was_killed:
        assert not was_killed


def test_runs_that_continue_may_name_the_code_that_the_container_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(superlink, "run_one_superlink", lambda arguments, **keywords: started.append(keywords))
    monkeypatch.setattr(sys, "argv", ["superlink", "--insecure", "--database", str(tmp_path / "state.db")])
    monkeypatch.setenv("ALLOW", "mine,theirs")
    (tmp_path / "state.db.running").touch()
    superlink.main()
    monkeypatch.delenv("ALLOW")
    superlink.main()
    assert started == [
        {"guarded": False, "resumes": True, "allow": ["mine", "theirs"]},
        {"guarded": False, "resumes": False, "allow": []},
    ]


@pytest.mark.e2e
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_real_one_notes_how_it_ended(end: signal.Signals, tmp_path: Path) -> None:
    words = ["--insecure", "--port", str(free_port()), "--fleet-api-address", f"127.0.0.1:{free_port()}"]
    command = [
        sys.executable,
        "-m",
        "fedappeal.containers.superlink",
        *words,
        "--database",
        str(tmp_path / "state.db"),
    ]
    process = Client(command, tmp_path / "log")
    process.wait_for("Uvicorn running")
    assert (tmp_path / "state.db.running").exists()
    process.end(end)
    assert (tmp_path / "state.db.running").exists() == (end == signal.SIGKILL)
