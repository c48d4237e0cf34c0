"""Starts a SuperLink's ServerApps, in a thread of the SuperLink, in place of Flower's SuperExec.

Flower's is a process of its own, which imports all of Flower again, and gives a ServerApp the token of its task on
the command line, which every user of the machine can read; here the token is in a file without a name that the
ServerApp inherits. A ServerApp is killed as soon as its SuperLink is gone: one that Flower only asks to end would
record a round whose clients ended before. Where another signal kills it, the SuperLink is told, which would miss its
heartbeat a minute later. A task that begins slowly keeps its token, which Flower takes back after 30 seconds without
a heartbeat, to start the task again.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from threading import Event, Thread
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.supercore import log
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from fedappeal.flower.proxied import heed_proxies
from fedappeal.flower.superlink.superlink_log import RateLimitedLog
from fedappeal.system.process_end import end_with_parent

ASKED_EVERY = 0.5
"""Seconds between two questions whether a task waits to be started."""
BEAT, BEATS = 15.0, 20
"""Seconds between two heartbeats for a task that begins, and their number."""
_ADDRESS, _CA, _INSTALL = "--runtime-api-address", "--root-certificates", "--allow-runtime-dependency-installation"
_SERVER_APP = [sys.executable, "-P", "-m", "fedappeal.flower.superlink.serverapp"]
"""Stands in for Flower's command of a ServerApp."""
_QUIET = (TaskType.SERVER_APP, TaskType.SIMULATION)
"""Tasks that send their output to the SuperLink, too."""
_LOG = RateLimitedLog()


class SuperExec(Thread):
    """A thread that starts tasks, in place of the SuperLink's subprocess.

    It has what the SuperLink calls of `subprocess.Popen`.

    Args:
        command: of Flower's SuperExec, ``flower-superexec`` and its options.
        options: of `subprocess.Popen`; a thread has no use for them.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(name="SuperExec", daemon=True)
        self._address = command[command.index(_ADDRESS) + 1]
        self._ca = command[command.index(_CA) + 1] if _CA in command else None
        self._install = [option for option in command if option == _INSTALL]
        self._ended = Event()
        heed_proxies()
        self.start()

    def run(self) -> None:
        """Start tasks until `terminate`; they are killed with this thread."""
        question = AcquireTaskRequest(supported_task_types=[*TASK_TYPE_TO_COMMAND])
        with self._client(RuntimeVersionHttpInterceptor("SuperExec")) as client:
            while not self._ended.wait(ASKED_EVERY):
                try:
                    answer = client.AcquireTask(question)
                except httpx.TransportError:  # the SuperLink does not listen yet, or no longer
                    continue
                except httpx.HTTPStatusError as error:
                    _LOG.warn(f"runs are not started: the SuperLink answers HTTP {error.response.status_code}")
                    continue
                if answer.token:
                    self.start_task(TaskType(answer.task.type), answer.token)

    def terminate(self) -> None:
        """End the thread."""
        self._ended.set()

    def wait(self, timeout: float) -> None:
        """Wait for the thread's end."""
        self.join(timeout)

    def start_task(self, kind: TaskType, token: str) -> "Popen[bytes]":
        """Start and watch a task's process, with its token out of sight."""
        tls = ["--insecure"] if self._ca is None else [_CA, self._ca]
        options = [_ADDRESS, self._address, *tls, "--parent-pid", str(os.getpid()), *self._install]
        # By a program in between: no code may run between fork and exec in a process with gRPC's threads.
        tied = [sys.executable, "-P", "-m", end_with_parent.__module__, str(os.getpid())]
        program = _SERVER_APP if kind is TaskType.SERVER_APP else [TASK_TYPE_TO_COMMAND[kind]]
        output = DEVNULL if kind in _QUIET else None
        with tempfile.TemporaryFile() as file:
            file.write(token.encode())
            file.seek(0)
            words = [*tied, *program, *options, "--token-file", f"/dev/fd/{file.fileno()}"]
            task = Popen(words, pass_fds=[file.fileno()], stdout=output, stderr=output)
        Thread(target=self._watch, args=(task, token), name="end of a task", daemon=True).start()
        return task

    def _watch(self, task: "Popen[bytes]", token: str) -> None:
        """Send a task's first heartbeats in its place, and report it if a signal kills it."""
        for _ in range(BEATS):
            try:
                task.wait(BEAT)
                break
            except TimeoutExpired:
                with self._client(*_as_task(token)) as client, suppress(httpx.HTTPError):
                    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        if (status := task.wait()) < 0 and not self._ended.is_set():
            self.report_killed(status, token)

    def report_killed(self, status: int, token: str) -> None:
        """Report a task as failed if a signal killed its process.

        Others report it themselves.

        Args:
            status: minus the signal's number.
            token: the task's.
        """
        details = f"its process (ServerApp) was killed by signal {-status}"
        with self._client(*_as_task(token)) as client:
            try:
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=details))
            except httpx.HTTPError as error:
                log(logging.WARNING, "a run failed: %s; the SuperLink does not take that: %s", details, error)

    def _client(self, *interceptors: Any) -> "closing[RuntimeHttpClient]":
        # Without Flower's retries, which end this process where the run has ended already.
        certificate = None if self._ca is None else Path(self._ca).read_bytes()
        return closing(
            RuntimeHttpClient.from_server_address(self._address, self._ca is None, certificate, interceptors)
        )


def _as_task(token: str) -> tuple[RuntimeVersionHttpInterceptor, RuntimeTokenHttpInterceptor]:
    """Return what makes a client's calls those of a task."""
    return RuntimeVersionHttpInterceptor("flwr-serverapp"), RuntimeTokenHttpInterceptor(token)
