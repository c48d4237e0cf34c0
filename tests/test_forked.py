"""`pytest --processes`: forked processes report what one process would, and one that dies is no silence."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ONE = """
import warnings
import pytest

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    yield tmp_path_factory.mktemp("shared")
    assert False, "at the end"

def test_passes(shared):
    assert shared.is_dir()

def test_fails():
    print("what it printed")
    assert 1 == 2

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass

def test_warns(shared):
    warnings.warn("a warning")
"""
TWO = """
import os

def test_passes(tmp_path):
    assert tmp_path.is_dir()
    assert os.getpid() != int(os.environ["FEDAPPEAL_TESTS_OWNER"])
"""
DIES = """
import os

def test_passes():
    pass

def test_dies():
    os._exit(3)

def test_comes_after():
    pass
"""


def pytest_of(folder: Path, **files: str) -> "subprocess.CompletedProcess[str]":
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    options = [
        "-p",
        "tests.forked",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(folder),
        "-q",
        "-rA",
    ]
    command = [sys.executable, "-m", "pytest", *options, "--processes", "2", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_they_report_what_one_process_would(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, one=ONE, two=TWO)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("1 failed, 3 passed, 1 skipped, 1 warning, 1 error in "), done.stdout + done.stderr
    assert "what it printed" in done.stdout
    assert "AssertionError: at the end" in done.stdout
    assert "UserWarning: a warning" in done.stdout


def test_the_death_of_a_process_is_a_failure_of_its_test(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, dies=DIES)
    assert done.returncode == 1
    assert "the process of this test ended with 3" in done.stdout, done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed, 1 passed in ")
