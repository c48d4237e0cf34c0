"""Runs a case in a folder, through the outside alone: the command line, `fedappeal.simulate`, Flower's `flwr run`."""

import contextlib
import io
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.recording.cases import SMALL, Case

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
_BREAK_AFTER = 3
"""Rounds after which a run is broken off."""
_LONGEST = 240.0
"""Seconds until a process of a case is given up."""


class CaseFailed(Exception):
    """A case that did not end as it should; says how."""


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
        _by_flower(case, folder, out, 0 if seed is None else seed)
    else:
        _by_command(case, folder, out, () if seed is None else ("--seed", str(seed)))


def _by_command(case: Case, folder: Path, out: Path, seed: Sequence[str]) -> None:
    arguments = [case.runtime, *SMALL, "--rounds", str(case.first_rounds), "--out", str(out), "--device", "cpu"]
    if case.runtime == "simulate":
        arguments += ["--threads", "1", *([] if "--mode" in case.options else ["--mode", "layers"])]
    arguments += [*case.options, *_without_swept(case, seed)]
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


def _without_swept(case: Case, seed: Sequence[str]) -> list[str]:
    swept = any(word.startswith("seed=") for word in case.options)
    return [] if swept else [*seed]


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
        raise CaseFailed(f"{shlex.join(arguments)}: exit code {code}, not {expected}: {said.getvalue()[-600:]}")


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
        deadline = time.monotonic() + _LONGEST
        while process.poll() is None and _rounds(out) < _BREAK_AFTER and time.monotonic() < deadline:
            time.sleep(0.002)
        if ended := process.poll() is not None or time.monotonic() >= deadline:
            process.kill()
        process.send_signal(signum)
        said = process.communicate(timeout=_LONGEST)[1]
    if ended or _finished(out):
        raise CaseFailed(f"{shlex.join(arguments)}: it was over before {signum.name}: {said[-600:]}")


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


def _by_flower(case: Case, folder: Path, out: Path, seed: int) -> None:
    """Run Flower's own simulation runtime, behind a SuperLink of this case.

    Raises:
        CaseFailed: `flwr run` fails.
    """
    home, port = folder / "home", _free_port()
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join((str(BIN), os.environ["PATH"])),
    }
    small = {key.removeprefix("--"): value for key, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    plugins = small.pop("set")
    settings = (
        small | {"rounds": str(case.rounds), "seed": str(seed)} | dict(word.split("=") for word in case.options)
    )
    run_config = " ".join([*(f"{key}={value}" for key, value in settings.items()), f"out='{out}' set='{plugins}'"])
    clients = settings["clients"]
    with (folder / "superlink.log").open("wb") as log:
        superlink = subprocess.Popen(
            [
                str(BIN / "fedappeal"),
                "superlink",
                "--simulation",
                "--insecure",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(port, superlink)
        done = subprocess.run(
            [
                *(str(BIN / "flwr"), "run", str(ROOT), "sim", "--stream"),
                *("--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1"),
                *("-c", run_config),
            ],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
    finally:
        superlink.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            superlink.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(superlink.pid, signal.SIGKILL)
        superlink.wait()
    if done.returncode or not (out / "model.safetensors").exists():
        (folder / "flwr.log").write_text(done.stdout + done.stderr)
        raise CaseFailed(f"flwr run: exit code {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise CaseFailed("the SuperLink does not answer")
