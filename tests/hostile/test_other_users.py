"""Promise: another user of this machine cannot submit, read, stop or join a run of yours, nor read its files."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedappeal.flower.bundle import build_fab
from fedappeal.flower.control import Control
from tests.hostile.federation import Federation, federation

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
OTHER_USER_TESTS = "FEDAPPEAL_OTHER_USER_TESTS"
PRIVATE = ("logs", "logs/superlink.log", "logs/client-0000.log", "logs/flower", "clients", "clients/0000")
REFUSED = "this SuperLink serves the user who started it alone"

if os.geteuid() != 0 and not os.environ.get(OTHER_USER_TESTS):
    pytest.skip(f"only root can be another user ({OTHER_USER_TESTS}=1 makes this fail)", allow_module_level=True)

HARMFUL = '''"""What must not run: it says whose it was."""
import os
from pathlib import Path
from flwr.serverapp import ServerApp

app = ServerApp()
Path({mark!r}).write_text(str(os.geteuid()))
'''


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[Federation, dict[str, str], Path]]:
    """A run of root's; what user 65534 got out of it; and the file that says whether that user's code ran."""
    assert os.geteuid() == 0, "this test has to be root, to be another user"
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made)
        folder.chmod(0o755)  # so that only what fedappeal makes is in the way
        mark = folder / "mark"
        (folder / "harmful_app.py").write_text(HARMFUL.format(mark=str(mark)))
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))
        # More rounds than it can finish: the last test stops it.
        with federation(folder, attackers=0, clients=2, rounds=10_000, local_steps=20) as run:
            run.submit()
            wait_for_a_round(run)
            yield run, attack(run, NOBODY), mark


def attack(run: Federation, uid: int) -> dict[str, str]:
    """Attack as a user, in a process of its own; return what each attack got."""
    host, _, port = run.superlink.control_address.rpartition(":")
    with socket.create_connection((host, int(port))) as friend:
        plan = {
            "control": run.superlink.control_address,
            "fleet": run.superlink.fleet_address,
            "run": run.run_id,
            "token": stolen_token(run.superlink.pid),
            "fab": build_fab({}, serverapp="harmful_app:app").hex(),
            "friend": "{}:{}".format(*friend.getsockname()),
            "files": [str(run.path / name) for name in PRIVATE],
            "uid": uid,
            "blind": uid != os.geteuid(),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile.neighbour", json.dumps(plan)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert int(found.pop("uid")) == uid
    return found


def wait_for_a_round(run: Federation) -> None:
    """Wait until the run has finished one more round."""
    before, until = len(run.history), time.monotonic() + 240
    while len(run.history) <= before:
        assert time.monotonic() < until, run.log
        time.sleep(0.1)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    below = [pid]
    for each in below:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            below += [int(child) for child in task.read_text().split()]
    return below


def stolen_token(superlink: int) -> str:
    """The token of the run's ServerApp, as only root can find it: in a file that the process has open."""
    for pid in family(superlink):
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(FileNotFoundError):  # closed meanwhile
                if "(deleted)" in os.readlink(link) and re.fullmatch(rb"[0-9a-f]{32,}", content := link.read_bytes()):
                    return content.decode()
    raise AssertionError("no ServerApp has a token")


def test_every_request_of_another_user_is_refused(attacked: tuple[Federation, dict[str, str], Path]) -> None:
    _, found, _ = attacked
    blind = {name for name in found if "and close" in name or "and reset" in name}
    asked = {name: told for name, told in found.items() if name not in blind and not name.startswith("read /")}
    assert len(asked) >= 14
    assert {name: told for name, told in asked.items() if REFUSED not in told} == {}
    # What is sent blindly gets no answer: the next test looks at what came of it.
    assert all(found[name] == "done sent" for name in blind), found


def test_nothing_of_what_another_user_sent_was_done(attacked: tuple[Federation, dict[str, str], Path]) -> None:
    run, _, mark = attacked
    api = Control(run.superlink.control_address)
    assert [each.run_id for each in api.runs()] == [run.run_id]
    assert api.run_status(run.run_id).status == "running"
    assert len(api.nodes()) == 2
    wait_for_a_round(run)
    assert all(line["joined"] == 2 for line in run.history)
    assert not mark.exists()
    assert f"refused at the Control port: a process of user {NOBODY}" in run.log
    assert f"refused at the Fleet port: a process of user {NOBODY}" in run.log


def test_the_files_of_a_run_are_its_users_alone(attacked: tuple[Federation, dict[str, str], Path]) -> None:
    run, found, _ = attacked
    read = {name: told for name, told in found.items() if name.startswith("read /")}
    assert len(read) == len(PRIVATE)
    assert all(told.startswith("PermissionError") for told in read.values()), read
    files = [*(run.path / "logs").glob("*.log"), *(run.path / "clients").rglob("*")]
    assert len(files) > 5
    assert [path for path in files if mode(path) & 0o077] == []


def mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:  # a client writes into a temporary file and renames it
        return 0


def test_no_process_shows_a_secret_to_all_users(attacked: tuple[Federation, dict[str, str], Path]) -> None:
    run, _, _ = attacked
    token = stolen_token(run.superlink.pid)
    for pid in (*family(run.superlink.pid), *family(run.clients.pid)):
        assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_the_owner_is_let_in_with_the_same_requests(attacked: tuple[Federation, dict[str, str], Path]) -> None:
    run, _, mark = attacked
    found = attack(run, os.geteuid())
    # Reading an object of no node, and claiming a task that another process has, fail for their own reasons.
    assert {name for name, told in found.items() if REFUSED in told} == set()
    done = {name for name, told in found.items() if told.startswith("done")}
    assert {
        "submit a run",
        "list runs",
        "list nodes",
        "read logs",
        "stop the run",
        "be the ServerApp with its token",
    } <= done
    assert {"register a node", "go online"} <= done
    until = time.monotonic() + 120
    while not mark.exists():
        assert time.monotonic() < until, run.log
        time.sleep(0.1)
    assert mark.read_text() == str(os.geteuid())
