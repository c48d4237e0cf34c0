"""Runs a case in a folder, through the outside alone: the command line, `fedappeal.simulate`, Flower's `flwr run`."""

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.recording.cases import SMALL, Case
from tests.recording.failure import LONGEST, CaseFailed, failed
from tests.recording.flowers_simulation import BIN, run_in_flowers_simulation

_BREAK_AFTER = 3
"""Rounds after which a run is broken off."""


def perform(case: Case, folder: Path, seed: int | None = None) -> None:
    """Run a case.

    Args:
        case: what is run.
        folder: new folder for all that it writes; a run of its own has ``folder/run``.
        seed: in place of the case's own, where it is given.

    Raises:
        CaseFailed: the run ended otherwise than it should.
    """
    folder.mkdir(parents=True)
    for name, text in case.files:
        (folder / name).write_text(text)
    out = folder / "run"
    if case.runtime == "api":
        _by_python(case, out, 0 if seed is None else seed)
    elif case.runtime == "flower":
        run_in_flowers_simulation(case, folder, out, 0 if seed is None else seed)
    else:
        _by_command(case, folder, out, () if seed is None else ("--seed", str(seed)))


def _by_command(case: Case, folder: Path, out: Path, seed: Sequence[str]) -> None:
    arguments = [case.runtime, *SMALL, "--rounds", str(case.first_rounds), "--out", str(out), "--device", "cpu"]
    if case.runtime == "simulate":
        arguments += ["--threads", "1", *([] if "--mode" in case.options else ["--mode", "layers"])]
    arguments += [*case.options, *(() if any(word.startswith("seed=") for word in case.options) else seed)]
    with contextlib.chdir(folder):
        if case.broken in ("", "resume"):
            _command(arguments)
        elif case.broken == "sigint":
            with _interrupted_after(out):
                _command(arguments, expected=130)
        else:
            _process(arguments, out, signal.Signals[case.broken.upper()])
        if case.broken:
            total = ["--rounds", str(case.rounds)] if case.broken == "resume" else []
            _command(["resume", str(out), *total])


def _command(arguments: Sequence[str], expected: int = 0) -> None:
    """Run the command in this process.

    Raises:
        CaseFailed: it ends with another exit code, or an exception.
    """
    from fedappeal.cli.main import main

    before, said = sys.argv, io.StringIO()
    sys.argv = ["fedappeal", *arguments]
    code: object = None
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        raise CaseFailed(f"{shlex.join(arguments)}: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = before
    if (code or 0) != expected:
        raise failed(f"{shlex.join(arguments)}: exit code {code}, not {expected}", said.getvalue())


@contextlib.contextmanager
def _interrupted_after(out: Path) -> Iterator[None]:
    """Send this process SIGINT once the run has some rounds, as Ctrl-C does."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            if _rounds(out) >= _BREAK_AFTER:
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _process(arguments: Sequence[str], out: Path, signum: signal.Signals) -> None:
    """Run the command in a process of its own, and end it by a signal.

    Raises:
        CaseFailed: it ended before the signal, or has too few rounds for too long.
    """
    command = [str(BIN / "fedappeal"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + LONGEST
        while process.poll() is None and _rounds(out) < _BREAK_AFTER and time.monotonic() < deadline:
            time.sleep(0.002)
        if ended := process.poll() is not None or time.monotonic() >= deadline:
            process.kill()
        process.send_signal(signum)
        said = process.communicate(timeout=LONGEST)[1]
    if ended or _finished(out):
        raise failed(f"{shlex.join(arguments)}: it was over before {signum.name}", said)


def _rounds(out: Path) -> int:
    with contextlib.suppress(OSError):
        return (out / "history.jsonl").read_bytes().count(b"\n")
    return 0


def _finished(out: Path) -> bool:
    return '"finished"' in (out / "events.jsonl").read_text()


def _by_python(case: Case, out: Path, seed: int) -> None:
    from tests.recording.api_runs import STARTS

    run = STARTS[case.options[0]](out, case.first_rounds, seed)
    if case.broken:
        assert run is not None
        run.resume(rounds=case.rounds)
