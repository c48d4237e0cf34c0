"""Which tests run which lines, and how long each test takes: coverage.py's contexts, one for each test.

What was measured of a test file is kept in .mutants/ until it, a mutated file, or a module that tests share changes.
"""

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.forked import run_forked

LIMIT = 900.0  # seconds that all tests of one file may take


@dataclass
class Measured:
    """Seconds of each test that passed, and the tests that run each line of each file."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]


class _Contexts:
    """A plug-in of pytest that names the running test to coverage.py, and notes how tests end."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.context = ""
        self.seconds: dict[str, float] = defaultdict(float)
        self.others: set[str] = set()  # tests that failed or were skipped

    def _switch(self, context: str) -> None:
        self.context = context
        self.coverage.switch_context(context)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._switch(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Whatever a fixture that several tests share runs, all tests of the file run."""
        if fixturedef.scope == "function":
            return (yield)
        before = self.context
        self._switch(before.partition("::")[0])
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.others.add(report.nodeid)


def measure(files: list[str], sources: list[str], options: list[str], folder: Path) -> dict[str, Any]:
    """Return what the test files run of the source files, in this process."""
    from coverage import Coverage

    coverage = Coverage(
        data_file=None, include=sources, config_file=False, concurrency=["thread", "greenlet"], messages=False
    )
    contexts = _Contexts(coverage)
    coverage.start()
    pytest.main([*options, f"--basetemp={folder / 'tests'}", *files], plugins=[contexts])
    coverage.stop()
    seconds = {test: time for test, time in contexts.seconds.items() if test not in contexts.others}
    data, lines = coverage.get_data(), dict[str, dict[int, list[str]]]()
    for path in data.measured_files():
        lines[path] = {}
        for line, names in data.contexts_by_lineno(path).items():
            tests = {test for test in seconds if test in names or test.partition("::")[0] in names}
            if tests:
                lines[path][line] = sorted(tests)
    return asdict(Measured(seconds, lines))


def covering(
    root: Path, tests: list[str], sources: list[str], options: list[str], processes: int, say: Callable[[str], None]
) -> Measured:
    """Return what all the test files run of the source files, relative to root; measure what is not kept."""
    kept = root / ".mutants"
    kept.mkdir(exist_ok=True)
    helpers = [path for path in root.glob("tests/**/*.py") if not path.name.startswith("test_")]
    helpers = [path for path in helpers if path.parent != Path(__file__).parent]
    code = hashlib.sha256()
    for path in sorted([root / source for source in sources] + helpers):
        code.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    places = {}
    for test in tests:
        digest = hashlib.sha256(code.digest() + (root / test).read_bytes()).hexdigest()[:16]
        places[test] = kept / f"{Path(test).stem}-{digest}.json.gz"
    missing = [test for test in tests if not places[test].exists()]
    for outdated in set(kept.glob("test_*")).difference(places.values()):
        outdated.unlink()

    def done(index: int, outcome: Any) -> None:
        measured = isinstance(outcome, dict)
        say(f"{index + 1}/{len(missing)} {missing[index]}: {len(outcome['seconds']) if measured else 'not measured'}")
        content = json.dumps(outcome if measured else asdict(Measured({}, {})))
        places[missing[index]].write_bytes(gzip.compress(content.encode(), 1))

    absolute = [str(root / source) for source in sources]
    jobs = [(partial(measure, [test], absolute, options), LIMIT) for test in missing]
    run_forked(jobs, processes, done)

    together = Measured({}, defaultdict(lambda: defaultdict(list)))
    for test in tests:
        measured = json.loads(gzip.decompress(places[test].read_bytes()))
        together.seconds.update(measured["seconds"])
        for path, lines in measured["lines"].items():
            for line, names in lines.items():
                together.lines[str(Path(path).relative_to(root))][int(line)] += names
    return together
