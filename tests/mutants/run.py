"""Whether tests notice: small changes of the code, each tried against the tests that run the changed line.

    python -m tests.mutants.run --number 300 --seed 0

A mutant that none of its tests notices survives and is printed: a test is missing, or the code can be simpler.
equivalent.toml lists those that no test can notice, with reasons. .mutants/ has the results as JSON. Exit code 1:
fewer than 95 % of those that are not equivalent are killed.

Each mutant is tried in a process that is forked where torch and Flower are imported and this project is not; the
changed source is loaded from memory, so that no file changes. cosmic-ray writes each mutant into the working tree and
starts all tests in a new interpreter (6 s for imports alone; it does not know which tests run a line). mutmut 3
leaves out properties and most other decorated functions, defaults of settings and constants, chooses tests by
function, and draws no sample.
"""

import argparse
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.mutants.covering import Measured, covering
from tests.mutants.forked import run_forked, warm_up
from tests.mutants.operators import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("strategies", "client/training", "client/participant.py", "client/limits", "client/state"),
    *("fedappeal/core/plugins.py", "fedappeal/system", "fedappeal/web", "fedappeal/flower"),
)
TESTED = ("strategies", "client", "web", "flower", "simulation", "server", "views", "protocol", "core", "system")
TESTS = tuple(f"tests/{room}" for room in TESTED)
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
# Nothing that starts more processes, and nothing that is kept in the tree.
MARKED = "not e2e and not docker and not ray and not reproduce"
OPTIONS = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", MARKED]
SLOW = 8.0  # seconds; a test that takes longer is left out
AIM = 0.95


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can notice: its file, the changed line, and why."""

    file: str
    mutant: str
    why: str


def listed() -> list[Equivalent]:
    """Return the mutants that are known to be equivalent."""
    return [Equivalent(**entry) for entry in tomllib.loads(EQUIVALENT.read_text())["equivalent"]]


def sources() -> list[str]:
    """Return the files that are mutated, relative to ROOT."""
    return _tracked(*ROOMS)


def _tracked(*places: str) -> list[str]:
    names = subprocess.run(["git", "ls-files", "--", *places], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in names.stdout.splitlines() if name.endswith(".py") and (ROOT / name).exists()]


class _Mutated(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module from a mutant's source, and no other."""

    def __init__(self, mutant: Mutant) -> None:
        parts = Path(mutant.path).with_suffix("").parts
        super().__init__(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(ROOT / mutant.path))
        self.mutant = mutant

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.mutant.apply(Path(self.path).read_bytes()), self.path, "exec", dont_inherit=True)


class _Failures:
    """A plug-in of pytest that notes which tests failed, in order."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tests.append(report.nodeid)


def first_failure(mutant: Mutant, tests: list[str], folder: Path) -> list[str]:
    """Return the first test that fails with a mutant; nothing where all pass."""
    sys.meta_path.insert(0, _Mutated(mutant))
    return failures(tests, folder, "-x")[:1]


def failures(tests: list[str], folder: Path, *options: str) -> list[str]:
    """Return the tests that fail."""
    plugin = _Failures()
    code = pytest.main(
        [*OPTIONS, "--timeout=60", f"--basetemp={folder / 'tests'}", *options, *tests], plugins=[plugin]
    )
    return plugin.tests if code == pytest.ExitCode.OK else plugin.tests or [f"pytest: {pytest.ExitCode(code).name}"]


def tests_of(mutant: Mutant, measured: Measured, seconds: float) -> list[str]:
    """Return tests that run a mutant's statement and take so long at most together.

    Those of its module's file come first, then those of its room, then the others, the quickest first.
    """
    lines = measured.lines[mutant.path]
    first, last = mutant.statement
    at = lines if mutant.imported else range(first, last + 1)
    tests = {test for line in at for test in lines.get(line, ())}
    room, stem = "tests/" + mutant.path.removeprefix("fedappeal/").partition("/")[0], Path(mutant.path).stem
    if mutant.imported:  # another module may be the only one that reads it
        word = re.compile(rf"\b{Path(mutant.path).parent.name if stem == '__init__' else stem}\b")
        files = {file for file in _tracked(*TESTS) if word.search((ROOT / file).read_text())}
        tests |= {test for test in measured.seconds if test.partition("::")[0] in files}

    def order(test: str) -> tuple[bool, bool, float]:
        file = test.partition("::")[0]
        return stem not in file, not file.startswith(room), measured.seconds[test]

    chosen, left = [], seconds
    for test in sorted((test for test in tests if measured.seconds[test] <= SLOW), key=order):
        left -= measured.seconds[test]
        if left > 0:
            chosen.append(test)
    return chosen


def _try_all(mutants: list[Mutant], measured: Measured, processes: int, most: float) -> list[dict[str, Any]]:
    """Return what became of each mutant."""
    results, jobs = [], []
    for mutant in mutants:
        tests = tests_of(mutant, measured, most)
        results.append({"file": mutant.path, "line": mutant.line, "before": mutant.before, "after": mutant.after})
        results[-1] |= {"mutant": _text(mutant), "tests": len(tests), "fate": "survived", "by": None}
        jobs.append((mutant, tests))
    tried = [index for index, (_, tests) in enumerate(jobs) if tests]

    def done(index: int, outcome: Any) -> None:
        result = results[tried[index]]
        if outcome == "limit":
            result["fate"] = "timed out"
        elif outcome != []:
            result |= {"fate": "killed", "by": outcome[0] if outcome else "the process ended"}
        print(f"{index + 1}/{len(tried)} {_spelled(result)}: {result['fate']}", file=sys.stderr, flush=True)

    def limit(tests: list[str]) -> float:
        return 45.0 + 4 * sum(measured.seconds[test] for test in tests)

    run_forked(((partial(first_failure, *jobs[index]), limit(jobs[index][1])) for index in tried), processes, done)

    # A test that fails without any mutant too, or does not end in time, shows nothing.
    killers = sorted({result["by"] for result in results if result["by"] in measured.seconds})
    late = [index for index, result in enumerate(results) if result["fate"] == "timed out"]
    checks = [killers[start : start + 20] for start in range(0, len(killers), 20)] + [
        jobs[index][1] for index in late
    ]
    unsure: set[str] = set()

    def checked(index: int, outcome: Any) -> None:
        late_one = index - (len(checks) - len(late))
        if late_one >= 0 and outcome != []:
            results[late[late_one]]["fate"] = "unsure"
        elif late_one < 0:
            unsure.update(outcome if isinstance(outcome, list) else checks[index])

    run_forked(((partial(failures, tests), limit(tests)) for tests in checks), processes, checked)
    for result in results:
        if result["by"] in unsure:
            result["fate"] = "unsure"
    return results


def _text(mutant: Mutant) -> str:
    return mutant.text((ROOT / mutant.path).read_bytes())


def _drawn(seed: int, mutant: Mutant) -> str:
    """Return where a mutant stands in the seed's order, in which a change of other lines moves no mutant."""
    name = f"{seed} {mutant.path} {mutant.before} {mutant.after} {_text(mutant)}"
    return hashlib.sha256(name.encode()).hexdigest()


def _spelled(result: dict[str, Any]) -> str:
    before, after = (" ".join(result[side].split()) or "nothing" for side in ("before", "after"))
    return f"{result['file']}:{result['line']}  {before[:80]} -> {after[:80]}  | {result['mutant'][:110]}"


def main(arguments: list[str] | None = None) -> int:
    """Try a sample of mutants, and say which survive."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--number", type=int, default=300, help="how many mutants (default: 300)")
    options.add_argument("--seed", type=int, default=0, help="which mutants (default: 0)")
    options.add_argument("--processes", type=int, default=2, help="processes side by side (default: 2)")
    options.add_argument("--seconds", type=float, default=60.0, help="of tests for one mutant, at most (default: 60)")
    options.add_argument("--only", default="", help="only mutants of files whose path begins so")
    options.add_argument("--survivors", action="store_true", help="only those that survived the last time")
    chosen = options.parse_args(arguments)

    os.chdir(ROOT)
    began = time.monotonic()
    warm_up()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mutated = sources()
    tests = [name for name in _tracked(*TESTS) if Path(name).name.startswith("test_")]
    measured = covering(ROOT, tests, mutated, OPTIONS, chosen.processes, partial(print, file=sys.stderr, flush=True))

    everything = [mutant for path in mutated for mutant in mutants_of(path, (ROOT / path).read_bytes())]
    place = ROOT / ".mutants" / f"results-{chosen.seed}-{chosen.number}.json"
    sample = sorted(everything, key=partial(_drawn, chosen.seed))[: chosen.number]
    if chosen.survivors:
        survived = [result for result in json.loads(place.read_text()) if result["fate"] in ("survived", "unsure")]
        again = {(result["file"], result["before"], result["mutant"]) for result in survived}
        sample = [mutant for mutant in everything if (mutant.path, mutant.before, _text(mutant)) in again]
        place = place.with_stem(place.stem + "-again")
    sample = sorted((m for m in sample if m.path.startswith(chosen.only)), key=lambda m: (m.path, m.line, m.start))
    results = _try_all(sample, measured, chosen.processes, chosen.seconds)

    equivalent = {(entry.file, entry.mutant) for entry in listed()}
    for result in results:
        if result["fate"] == "survived" and (result["file"], result["mutant"]) in equivalent:
            result["fate"] = "equivalent"
    place.write_text(json.dumps(results, indent=1) + "\n")
    for result in results:
        if result["fate"] in ("survived", "unsure"):
            print(f"{result['fate']}: {_spelled(result)}  ({result['tests']} tests)")
    fates = Counter(result["fate"] for result in results)
    killed, others = fates["killed"] + fates["timed out"], len(results) - fates["equivalent"]
    share = killed / others if others else 1.0
    print(
        f"{len(results)} of {len(everything)} mutants in {(time.monotonic() - began) / 60:.0f} min: "
        f"{killed} killed ({fates['timed out']} by time), {fates['survived']} survived, {fates['unsure']} unsure, "
        f"{fates['equivalent']} equivalent; {share:.1%} of the others killed"
    )
    print(f"results: {place.relative_to(ROOT)}")
    return int(share < AIM)


if __name__ == "__main__":
    sys.exit(main())
