"""A mutant is tried against the tests of its lines, in a process of its own; equivalent ones are listed."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import run
from tests.mutants.covering import Measured, measure
from tests.mutants.forked import run_forked
from tests.mutants.operators import Mutant, mutants_of

CODE = """\
LIMIT = 3

def allowed(count):
    if count < LIMIT:
        return "few"
    return "many"

def other(count):
    return count + 1
"""
TESTS = """\
import sys
sys.path.insert(0, {folder!r})
import pytest
from counted import allowed, other

@pytest.fixture(scope="module")
def shared():
    return other(1)

def test_few():
    assert allowed(1) == "few"

def test_many():
    assert allowed(9) == "many"

def test_shared(shared):
    assert shared == 2

def test_that_fails():
    assert allowed(1) == "many"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module, and its tests; they are the project that mutants are made of."""
    (tmp_path / "counted.py").write_text(CODE)
    (tmp_path / "test_counted.py").write_text(TESTS.format(folder=str(tmp_path)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def in_process(work: Callable[[Path], Any]) -> Any:
    outcomes: list[Any] = []
    run_forked([(work, 60.0)], 1, lambda index, outcome: outcomes.append(outcome))
    return outcomes[0]


def mutant(after: str) -> Mutant:
    return next(one for one in mutants_of("counted.py", CODE.encode()) if one.text(CODE.encode()) == after)


def test_lines_and_their_tests(project: Path) -> None:
    work = partial(measure, ["test_counted.py"], [str(project / "counted.py")], run.OPTIONS)
    measured = Measured(**in_process(work))
    passing = {f"test_counted.py::test_{name}" for name in ("few", "many", "shared")}
    assert set(measured.seconds) == passing
    lines = measured.lines[str(project / "counted.py")]
    # A line that a shared fixture runs belongs to all tests of its file; no test runs those of the import.
    assert {line: set(tests) for line, tests in lines.items()} == {
        "4": {"test_counted.py::test_few", "test_counted.py::test_many"},
        "5": {"test_counted.py::test_few"},
        "6": {"test_counted.py::test_many"},
        "9": passing,
    }


@pytest.mark.parametrize(
    ("after", "tests", "noticed"),
    [
        ("if not (count < LIMIT):", ["many", "few"], "many"),
        ("if count <= LIMIT:", ["many", "few"], None),
        ("return None", ["many", "few"], "few"),
        ("LIMIT = 4", ["many", "few"], None),
        ("return count - 1", ["few", "shared"], "shared"),
    ],
)
def test_the_first_test_that_notices(project: Path, after: str, tests: list[str], noticed: str | None) -> None:
    names = [f"test_counted.py::test_{name}" for name in tests]
    failed = in_process(partial(run.first_failure, mutant(after), names))
    assert failed == ([f"test_counted.py::test_{noticed}"] if noticed else [])
    assert (project / "counted.py").read_text() == CODE
    assert "counted" not in sys.modules


def test_tests_of_a_mutant_are_those_of_its_lines_and_its_own_file_comes_first(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_tracked", lambda *places: ["test_counted.py"])
    seconds = {"test_a.py::slow": 9.0, "test_a.py::quick": 0.1, "test_counted.py::it": 2.0, "test_b.py::long": 39.0}
    lines = {4: list(seconds), 9: ["test_b.py::long"]}
    measured = Measured(seconds, {"counted.py": lines})
    assert run.tests_of(mutant("if count <= LIMIT:"), measured, 3.0) == ["test_counted.py::it", "test_a.py::quick"]
    assert run.tests_of(mutant("return count - 1"), measured, 30.0) == []


def test_processes_that_return_end_early_or_run_too_long(capfd: pytest.CaptureFixture[str]) -> None:
    outcomes: dict[int, Any] = {}
    jobs: list[tuple[Callable[[Path], Any], float]] = [
        (lambda folder: {"folder": len(list(folder.iterdir()))}, 30.0),  # its log
        (lambda folder: os._exit(3), 30.0),
        (lambda folder: time.sleep(60), 0.2),
    ]
    run_forked(jobs, 2, outcomes.__setitem__)
    assert outcomes == {0: {"folder": 1}, 1: None, 2: "limit"}


def test_every_equivalent_mutant_is_one_and_has_a_reason() -> None:
    sources = {name: (run.ROOT / name).read_bytes() for name in {entry.file for entry in run.listed()}}
    texts = {(name, mutant.text(source)) for name, source in sources.items() for mutant in mutants_of(name, source)}
    entries = run.listed()
    assert {(entry.file, entry.mutant) for entry in entries} <= texts
    assert len({(entry.file, entry.mutant) for entry in entries}) == len(entries)
    assert all(len(entry.why.split()) >= 4 for entry in entries)
