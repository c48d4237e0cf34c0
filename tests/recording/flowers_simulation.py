"""Runs a case in Flower's own simulation runtime: `flwr run`, on a SuperLink that is the case's own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.recording.cases import SMALL, Case
from tests.recording.failure import LONGEST, CaseFailed, failed

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run_in_flowers_simulation(case: Case, folder: Path, out: Path, seed: int) -> None:
    """Run a case.

    Raises:
        CaseFailed: `flwr run` fails.
    """
    small = {key.removeprefix("--"): value for key, value in zip(SMALL[::2], SMALL[1::2], strict=True)}
    plugins = small.pop("set")
    settings = (
        small | dict(word.split("=") for word in case.options) | {"rounds": str(case.rounds), "seed": str(seed)}
    )
    run_config = " ".join([*(f"{key}={value}" for key, value in settings.items()), f"out='{out}' set='{plugins}'"])
    home = folder / "home"
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join((str(BIN), os.environ["PATH"])),
    }
    with _superlink(folder, environment) as address:
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "{address}"\ninsecure = true\n'
        )
        done = subprocess.run(
            [
                *(str(BIN / "flwr"), "run", str(ROOT), "sim", "--stream"),
                *("--federation-config", f"num-supernodes={settings['clients']} client-resources-num-cpus=1"),
                *("-c", run_config),
            ],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    if done.returncode or not (out / "model.safetensors").exists():
        raise failed(f"flwr run: exit code {done.returncode}", done.stdout + done.stderr)


@contextlib.contextmanager
def _superlink(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a SuperLink for simulations; yields the address of its Control API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    place = ("--host", "127.0.0.1", "--port", str(port))
    with (folder / "superlink.log").open("wb") as log:
        superlink = subprocess.Popen(
            [str(BIN / "fedappeal"), "superlink", "--simulation", "--insecure", *place],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(port, superlink)
        yield f"127.0.0.1:{port}"
    finally:
        superlink.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            superlink.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(superlink.pid, signal.SIGKILL)
        superlink.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process answers at a port.

    Raises:
        CaseFailed: it does not.
    """
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise CaseFailed("the SuperLink does not answer")
