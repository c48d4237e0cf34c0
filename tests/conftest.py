"""What all tests share: no deadlines on a busy machine, one thread for small models, Ctrl+C arrives, no fsync."""

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
import typer.main
from hypothesis import settings

# Before torch is imported; processes that tests start inherit both. Threads that wait leave the processor to others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
settings.register_profile("fedappeal", deadline=None)
settings.load_profile("fedappeal")
# A shell starts its background jobs with SIGINT ignored, and nohup with SIGHUP, which their processes would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# What a test writes need not outlast a power failure: waiting for the disk took a third of many a test's time.
setattr(os, "fsync", lambda file: None)  # noqa: B010
# Each call of the command's `main` makes all options of all commands anew, which takes 40 ms.
typer.main.get_command = cache(typer.main.get_command)
# Each client reads all certificates of this machine, which takes 40 ms.
setattr(httpx._transports.default, "create_ssl_context", cache(httpx.create_ssl_context))  # noqa: B010


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped-to", metavar="FILE", help="write the skipped tests into a file, one a line")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write them as pytest takes them: `pytest @FILE` runs them."""
    if file := config.getoption("--skipped-to"):
        skipped = [report.nodeid for report in terminalreporter.getreports("skipped")]
        Path(file).write_text("".join(f"{nodeid}\n" for nodeid in skipped))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Fork pytest's workers from a process that has imported PyTorch, Flower and fedappeal."""
    from tests.warm import fork_workers

    fork_workers()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what is imported: Flower, for one, collects whenever it reads a message."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def folder_of_ray() -> Iterator[None]:
    """Give Ray a folder of these tests alone: in the common one it waits for a cluster that was killed before."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("RAY_TMPDIR", folder)
        yield
