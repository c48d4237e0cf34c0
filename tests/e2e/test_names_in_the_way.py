"""The commands work from a folder that holds somebody else's client.py, server.py and strategies/."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedappeal.record.lines import HISTORY
from fedappeal.record.reader import Record
from tests.e2e.conftest import BIN, Marked

pytestmark = pytest.mark.e2e

FEDAPPEAL = str(BIN / "fedappeal")
SHORT = [
    "--rounds",
    "2",
    "--local-steps",
    "2",
    "--strategy",
    "fedavg",
    "--model",
    "logistic",
    "--requirement",
    "fixed",
]
TRAP = "raise RuntimeError('somebody else\\'s file was imported')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of fedappeal's names, each of which raises when it is imported."""
    there = tmp_path / "theirs"
    (there / "strategies").mkdir(parents=True)
    for name in ("client.py", "server.py", "strategies/__init__.py"):
        (there / name).write_text(TRAP)
    return there


def run(marked: Marked, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    # As a user has it: the installed command, and no PYTHONPATH.
    env = {name: value for name, value in marked.env.items() if name != "PYTHONPATH"}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def rounds(folder: Path) -> int:
    return len(Record(folder).history)


def test_a_sweep_in_a_process_of_its_own_runs(marked: Marked, folder: Path) -> None:
    options = [*SHORT, "--clients", "3", "--sweep", "seed=0..1", "--jobs", "1", "--out", "sweep"]
    done = run(marked, folder, FEDAPPEAL, "simulate", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [rounds(path.parent) for path in (folder / "sweep").glob(f"*/{HISTORY}")] == [2, 2]


def test_a_federation_of_real_processes_runs(marked: Marked, folder: Path) -> None:
    done = run(marked, folder, FEDAPPEAL, "local", *SHORT, "--clients", "2", "--out", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rounds(folder / "run") == 2


def test_where_python_looks_in_the_current_folder_first_one_line_names_the_file(marked: Marked, folder: Path) -> None:
    done = run(marked, folder, sys.executable, "-m", "fedappeal.cli.main", "list")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"fedappeal: '{folder / 'client.py'}' is in the way of fedappeal's own package")
    assert done.stderr.count("\n") == 1
    done = run(marked, folder, sys.executable, "-P", "-m", "fedappeal.cli.main", "list")
    assert done.returncode == 0, done.stderr
    assert "maxfl" in done.stdout


def test_a_client_starts(marked: Marked, folder: Path) -> None:
    """It gets as far as its own state folder and the SuperLink that is not there."""
    where = ["--superlink", "127.0.0.1:1", "--insecure", "--state-dir", "state", "--connect-timeout", "0.2"]
    done = run(marked, folder, FEDAPPEAL, "client", "--partition-id", "0", *where)
    assert done.returncode == 2
    assert (
        done.stderr == "fedappeal: gave up after 0.2 s: nothing listens at 127.0.0.1:1: is the SuperLink running?\n"
    )
    assert (folder / "state").is_dir()
