"""A federation of real client processes on this machine: SuperLink, clients, one run, and the end of them all."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fedappeal.federation.submit import RunStatus, SubmitError, build_fab, run_status, stop_run, submit
from fedappeal.federation.superlink import FLOWER_QUIET, SuperLink
from fedappeal.protocol.config import ConfigError, RunConfig
from server.run_folder import CHECKPOINT, EVENTS, HISTORY, PARTICIPATION, RunFolder, read_lines

_POLL = 0.1
_STATUS_EVERY = 1.0

Watch = Callable[[str, dict[str, Any]], None]
"""Told of each new line of the run's folder: ``("round" | "event", line)``."""


class LocalRunError(RuntimeError):
    """The run did not finish; the message is one line."""


def run_local(
    config: RunConfig,
    folder: RunFolder,
    watch: Watch,
    *,
    port: int = 0,
    data_dir: str = "",
    device: str = "auto",
    state_dir: str = "",
) -> None:
    """Run a federation of client processes on loopback until the run has finished.

    Args:
        config: the run's settings.
        folder: the run's folder; a checkpoint in it is gone on from.
        watch: told what happens.
        port: port of the SuperLink's Fleet API; 0: the system picks one.
        data_dir: folder with the data sets.
        device: where the clients train.
        state_dir: folder of the clients' durable state; empty: inside the run's folder.

    Raises:
        LocalRunError: if the run failed. All processes that were started have ended when this returns or raises.
    """
    settings = config.model_copy(update={"out": str(folder.path), "resume": True})
    seen_events = len(read_lines(folder.path / EVENTS))
    done = _finished_rounds(folder)
    with ExitStack() as stack:
        stack.enter_context(_terminate_as_interrupt())
        # Ended in the opposite order: the clients say goodbye to a SuperLink that still runs.
        superlink = SuperLink(folder.path / "logs", fleet_port=port)
        stack.callback(superlink.stop)
        nursery = _start_nursery(config, folder.path, data_dir, device, state_dir)
        stack.callback(_end, nursery)
        superlink.start()
        assert nursery.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            nursery.stdin.write(superlink.fleet_address + "\n")
            nursery.stdin.flush()
        run_id = submit(superlink.control_address, build_fab(settings.as_config()))
        try:
            status = _follow(superlink, run_id, nursery, folder.path, watch, seen_events, done)
        except KeyboardInterrupt:
            with contextlib.suppress(SubmitError):
                stop_run(superlink.control_address, run_id)
            raise
    if not status.completed:
        reason = next((e["reason"] for e in read_lines(folder.path / EVENTS)[::-1] if e["event"] == "failed"), "")
        raise LocalRunError(
            f"the run failed: {reason or status.details or status.sub_status} (logs: {folder.path}/logs)"
        )


def _finished_rounds(folder: RunFolder) -> int:
    if not (folder.path / CHECKPOINT).exists():
        return 0
    return max((int(line["round"]) for line in read_lines(folder.path / HISTORY)), default=0)


def _start_nursery(
    config: RunConfig, path: Path, data_dir: str, device: str, state_dir: str
) -> subprocess.Popen[str]:
    states = Path(state_dir) if state_dir else path / "clients"
    total = config.clients + config.unseen_clients
    plan = {
        "clients": [
            {
                "partition-id": i,
                "num-partitions": total,
                "task": config.task,
                "state-dir": str((states / f"{i:04d}").absolute()),
                "data-dir": data_dir,
                "device": device,
            }
            for i in range(total)
        ],
        "settings": config.task_settings().as_config(),
        "logs": str((path / "logs").absolute()),
    }
    (path / "logs").mkdir(parents=True, exist_ok=True)
    with (path / "logs" / "clients.log").open("ab") as log:
        nursery = subprocess.Popen(
            [sys.executable, "-m", "client.nursery"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # One thread a client: ten clients share the processor, and a fork must not find a pool of threads.
            env={**os.environ, **FLOWER_QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": _import_path()},
        )
    assert nursery.stdin is not None
    nursery.stdin.write(json.dumps(plan) + "\n")
    nursery.stdin.flush()
    return nursery


def _import_path() -> str:
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)


def _follow(
    superlink: SuperLink,
    run_id: int,
    nursery: "subprocess.Popen[str]",
    path: Path,
    watch: Watch,
    events: int,
    rounds: int,
) -> RunStatus:
    """Report new lines until the run has ended; return how."""
    next_status = time.monotonic()
    while True:
        status = None
        if time.monotonic() >= next_status:
            status = run_status(superlink.control_address, run_id)
            next_status = time.monotonic() + _STATUS_EVERY
        # Lines are read after the status: what a finished run wrote is all there.
        fresh = read_lines(path / EVENTS)[events:]
        events += len(fresh)
        for line in fresh:
            watch("event", line)
            if line["event"] in ("finished", "failed"):
                next_status = 0.0
        lines = [line for line in read_lines(path / HISTORY) if int(line["round"]) > rounds]
        for line in lines:
            rounds = int(line["round"])
            decisions = {
                d["client-id"]: d["decision"] for d in read_lines(path / PARTICIPATION) if d["round"] == rounds
            }
            watch("round", {**line, "decisions": decisions})
        if status is not None and status.finished:
            return status
        if nursery.poll() is not None:
            raise LocalRunError(
                f"the client processes ended (exit code {nursery.returncode}); see {path}/logs/clients.log"
            )
        if not superlink.alive:
            raise LocalRunError(f"the SuperLink ended; see {superlink.log_file}")
        time.sleep(_POLL)


def _end(process: "subprocess.Popen[str]", timeout: float = 5.0) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does: with every process ended."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def check_port(port: int) -> None:
    """Check that a port of loopback is free.

    Raises:
        ConfigError: if it is in use, or not a port.
    """
    import socket

    if not 0 <= port < 65536:
        raise ConfigError(f"port = {port} is not allowed: 0 (the system picks one) to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port = {port} is not allowed: {error.strerror}") from None
