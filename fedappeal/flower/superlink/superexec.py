"""Flower's SuperExec, which starts a SuperLink's ServerApps, as a thread of the SuperLink.

Flower gives it a process of its own, which imports all of Flower again. Flower also gives a ServerApp the token of
its task on the command line, which every user of the machine can read; here the token is in a file without a name
that the ServerApp inherits. A ServerApp is killed as soon as its SuperLink is gone: one that Flower only asks to end
would record a round whose clients ended before. Where another signal kills it, the SuperLink is told, which would
miss its heartbeat a minute later.
"""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore import log
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import subprocess_executor

from fedappeal.flower.processes import replace_name
from fedappeal.system.process_end import end_with_parent

_ADDRESS, _CA, _TOKEN = "--runtime-api-address", "--root-certificates", "--token"
SUBMITTED = Event()
"""Set when a run was submitted: its task waits."""
_OWN_MODULE = {TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP]: "fedappeal.flower.superlink.serverapp"}
"""Flower's commands of tasks in whose place a module of ours runs."""


class SuperExec(Thread):
    """Flower's SuperExec, with what a SuperLink calls of the `subprocess.Popen` in whose place it stands.

    Args:
        command: ``flower-superexec`` and its options.
        options: of `subprocess.Popen`; a thread has no use for them.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(name="SuperExec", daemon=True)
        self._command = command
        self._ended = Event()
        self.start()

    def run(self) -> None:
        """Start the tasks of the SuperLink, as soon as it answers."""
        replace_name(subprocess_executor, "subprocess", SimpleNamespace(Popen=self.start_task, DEVNULL=DEVNULL))
        replace_name(run_superexec, "register_signal_handlers", lambda **keywords: None)  # the SuperLink's stay
        replace_name(run_superexec, "time", SimpleNamespace(sleep=self._pause))
        address = self._command[self._command.index(_ADDRESS) + 1]
        with suppress(SystemExit):
            self._wait_until_served(address)
            run_superexec.run_superexec(
                address,
                insecure="--insecure" in self._command,
                root_certificates_path=_ca(self._command),
                runtime_dependency_install="--allow-runtime-dependency-installation" in self._command,
            )

    def terminate(self) -> None:
        """End: tasks are killed with the thread that started them."""
        self._ended.set()
        SUBMITTED.set()

    def wait(self, timeout: float) -> None:
        """Wait until this has ended."""
        self.join(timeout)

    def start_task(self, arguments: Sequence[str], **options: Any) -> "Popen[bytes]":
        """Start the process of a task as Flower does, its token out of sight, and watch for its end.

        Args:
            arguments: its command, ``--token`` and the token among them.
            options: of `subprocess.Popen`.
        """
        program, at = arguments[0], arguments.index(_TOKEN)
        python = [sys.executable, "-P", "-m"]
        program_line = [*python, _OWN_MODULE[program]] if program in _OWN_MODULE else [program]
        # By a program in between: no code may run between fork and exec in a process with gRPC's threads.
        tied = [*python, end_with_parent.__module__, str(os.getpid())]
        with tempfile.TemporaryFile() as file:
            file.write(arguments[at + 1].encode())
            file.seek(0)
            number = file.fileno()
            task = Popen(
                [*tied, *program_line, *arguments[1:at], "--token-file", f"/dev/fd/{number}", *arguments[at + 2 :]],
                pass_fds=[number],
                **options,
            )
        Thread(target=self._report_killed, args=(task, arguments), name="end of a task", daemon=True).start()
        SUBMITTED.set()  # Flower starts one run each time that it asks
        return task

    def _report_killed(self, task: "Popen[bytes]", arguments: Sequence[str]) -> None:
        if (status := task.wait()) < 0 and not self._ended.is_set():
            report_killed(status, arguments)

    def _pause(self, seconds: float) -> None:
        SUBMITTED.wait(seconds)
        SUBMITTED.clear()
        if self._ended.is_set():
            sys.exit()  # this thread

    def _wait_until_served(self, address: str) -> None:
        """Wait until the SuperLink, which starts this before it listens, does."""
        host, _, port = address.rpartition(":")
        while True:
            with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
                return
            self._pause(0.05)


def report_killed(status: int, arguments: Sequence[str]) -> None:
    """Tell the SuperLink that a task failed because a signal killed its process; others tell it themselves.

    Args:
        status: minus the signal's number.
        arguments: its command as Flower gave it: the SuperLink's address stands before ``--token``.
    """
    at = arguments.index(_TOKEN)
    # Without Flower's retries, which end this process where the run has ended already.
    client = RuntimeHttpClient.from_server_address(
        arguments[at - 1],
        "--insecure" in arguments,
        Path(ca).read_bytes() if (ca := _ca(arguments)) else None,
        [RuntimeVersionHttpInterceptor("flwr-serverapp"), RuntimeTokenHttpInterceptor(arguments[at + 1])],
    )
    details = f"its process (ServerApp) was killed by signal {-status}"
    with closing(client):
        try:
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=details))
        except httpx.HTTPError as error:
            log(logging.WARNING, "a run failed: %s; the SuperLink does not take that: %s", details, error)


def _ca(arguments: Sequence[str]) -> str | None:
    """Return the file of the CA's certificate that a command names; None: none."""
    return arguments[arguments.index(_CA) + 1] if _CA in arguments else None
