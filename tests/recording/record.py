"""Short runs of everything, and hashes of what they leave: the check of a change that should change nothing.

``python -m tests.recording.record --check`` runs all cases and compares them with ``recorded.json``, to the bit on
the kind of machine and with the versions that the file names; ``--write`` records anew. The cases are those of
`tests.recording.cases`. The file holds the quick ones, ``--core``: before a restructuring, record all. A change that
is meant to change a run records anew in its own commit.
"""

import argparse
import contextlib
import logging
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.recording.cases import Case, cases
from tests.recording.comparing import DIFFERENT, EQUAL, FILE, WITHIN, Recording, compare, read, write
from tests.recording.failure import LONGEST, CaseFailed, RayTooSlow
from tests.recording.fingerprint import Fingerprint, Incomplete, fingerprint
from tests.recording.performing import perform

_VERSIONS = ("torch", "numpy", "flwr", "scikit-learn", "flwr-datasets")
_ATTEMPTS = 3
"""How often a case is begun where Ray starts too slowly."""
_PROCESSES = 3
"""How many times as long as a process of a case the case may take."""
_SHOWN = 12
"""Differences of a case that are printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or check; return the exit code: 1 where a case differs or fails."""
    options = _parser().parse_args(arguments)
    chosen = [case for case in cases() if options.only in case.name and (case.core or not options.core)]
    missing = [case.name for case in chosen if case.needs is not None and not case.needs.is_dir()]
    chosen = [case for case in chosen if case.name not in missing]
    for name in missing:
        print(f"{name}: left out, its data are not on this machine")
    if not chosen:
        print(f"no case's name contains '{options.only}'")
        return 2
    began = time.monotonic()
    with _folder(options.keep) as folder:
        done = _performed(chosen, folder, options.jobs, options.seed, options.order, options.verbose)
    took = f"{len(chosen)} cases in {time.monotonic() - began:.0f} s"
    failed = {name: reason for name, reason in done.items() if isinstance(reason, str)}
    recording = {name: runs for name, runs in done.items() if not isinstance(runs, str)}
    for name, reason in sorted(failed.items()):
        print(f"{name}: FAILED: {reason}")
    if options.write:
        return _write(chosen, recording, failed, took)
    return _check(chosen, recording, failed, took, options.seed is not None, options.bits)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.recording.record", description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="record; other cases stay as they are")
    what.add_argument("--check", action="store_true", help="compare with the recording")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases whose name contains this")
    parser.add_argument("--core", action="store_true", help="the quick checks alone")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once (2)")
    parser.add_argument("--bits", action="store_true", help="differences in the last bits alone fail as well")
    parser.add_argument("--order", choices=("listed", "reversed"), default="listed", help="of the cases")
    parser.add_argument("--verbose", action="store_true", help="say when each case is over")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="a new folder that keeps the runs")
    parser.add_argument(
        "--seed", type=int, help="another seed for all cases: the check then fails unless nearly all differ by it"
    )
    return parser


@contextlib.contextmanager
def _folder(keep: str) -> Iterator[Path]:
    if keep:
        Path(keep).mkdir(parents=True)
        yield Path(keep).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="recording-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _performed(
    chosen: Sequence[Case], folder: Path, jobs: int, seed: int | None, order: str, verbose: bool
) -> dict[str, dict[str, Fingerprint] | str]:
    """Return by case its runs' fingerprints, or why it failed."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "120"}
    # Real processes wait most: begun first.
    work = sorted(chosen, key=lambda case: case.runtime in ("simulate", "api"))
    if order == "reversed":
        work.reverse()
    found: dict[str, dict[str, Fingerprint] | str] = {}
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin) as pool:
        begun = {pool.submit(one, case, folder / case.name.replace("/", "-"), seed): case.name for case in work}
        for future in as_completed(begun):
            try:
                found[begun[future]] = future.result()
            except Exception as error:  # a worker that died
                found[begun[future]] = f"{type(error).__name__}: {error}"
            if verbose:
                print(f"{time.monotonic() - start:6.1f} s  {begun[future]}", flush=True)
    return found


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    signal.signal(signal.SIGALRM, _too_long)
    logging.getLogger("flwr").addFilter(lambda record: record.levelno >= logging.WARNING)


def _too_long(signum: int, frame: object) -> None:
    raise CaseFailed(f"it takes longer than {_PROCESSES * LONGEST:.0f} s")


def one(case: Case, folder: Path, seed: int | None) -> dict[str, Fingerprint] | str:
    """Run a case; return its runs' fingerprints by folder, or why there are none."""
    signal.alarm(int(_PROCESSES * LONGEST))
    try:
        folder = _perform(case, folder, seed)
        events = case.runtime in ("simulate", "api") and case.broken in ("", "resume")
        return {name: fingerprint(folder / "run" / name, events) for name in case.runs}
    except (CaseFailed, Incomplete, KeyboardInterrupt) as error:
        return str(error) or type(error).__name__
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)


def _perform(case: Case, folder: Path, seed: int | None) -> Path:
    """Run a case, again where Ray starts too slowly; return its folder."""
    for attempt in range(1, _ATTEMPTS):
        with contextlib.suppress(RayTooSlow):
            perform(case, attempted := folder / str(attempt), seed)
            return attempted
    perform(case, attempted := folder / str(_ATTEMPTS), seed)
    return attempted


def _write(chosen: Sequence[Case], recording: Recording, failed: dict[str, str], took: str) -> int:
    before, tolerances = read() if FILE.exists() else ({}, {})
    names = {case.name for case in cases()}
    every = {name: runs for name, runs in (before | recording).items() if name in names}
    tolerances = {case.name: case.tolerance for case in cases() if case.name in every}
    write(every, _about(), tolerances)
    print(f"recorded {took}; {len(every)} cases in {FILE.name}; {len(failed)} failed")
    return 1 if failed else 0


def _check(
    chosen: Sequence[Case], recording: Recording, failed: dict[str, str], took: str, other_seed: bool, bits: bool
) -> int:
    recorded, tolerances = read()
    verdicts = {EQUAL: 0, WITHIN: 0, DIFFERENT: 0}
    added: set[str] = set()
    wrong = {*failed}
    alike = []
    for case in chosen:
        if case.name in failed:
            continue
        if case.name not in recorded:
            print(f"{case.name}: not recorded")
            wrong.add(case.name)
            continue
        compared = {name: compare(recorded[case.name][name], run) for name, run in recording[case.name].items()}
        worst = max((result.verdict for result in compared.values()), key=[EQUAL, WITHIN, DIFFERENT].index)
        verdicts[worst] += 1
        added |= {line for result in compared.values() for line in result.added}
        alike += [case.name] if worst != DIFFERENT else []
        if worst == DIFFERENT or (worst == WITHIN and bits and case.name not in tolerances):
            wrong.add(case.name)
        if worst != EQUAL and not other_seed:
            why = f" ({tolerances[case.name]})" if case.name in tolerances else ""
            print(f"{case.name}: {worst}{why}")
            for name, result in compared.items() if worst == DIFFERENT or not why else ():
                for line in (result.different or result.bits)[:_SHOWN]:
                    print(f"    {'' if name == '.' else name + ': '}{line}")
    if added:
        print(f"added since: {', '.join(sorted(added))}")
    print(f"{took}: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}, {len(failed)} failed")
    if other_seed:
        print(f"alike under another seed: {', '.join(alike) or 'none'}")
        return 1 if failed or len(alike) > len(chosen) // 20 else 0
    return 1 if wrong else 0


def _about() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "commit": commit.stdout.strip(),
        "processor": processor,
        "python": platform.python_version(),
        **{name: version(name) for name in _VERSIONS},
    }


if __name__ == "__main__":
    sys.exit(main())
