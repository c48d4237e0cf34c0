"""Flower's SuperExec in this process, which starts a SuperLink's ServerApps: without a secret in the process list.

    python -P -m fedappeal.flower.superlink.superexec [options of `flower-superexec`]

Flower gives a ServerApp the token of its task on the command line, which every user of the machine can read. Here the
token is in a file without a name that the ServerApp inherits. This process is also killed as soon as its SuperLink is
gone, and the ServerApp with it: one that Flower only asks to end would record a round whose clients ended before.
Where a ServerApp is killed, this process tells the SuperLink, which would miss its heartbeat a minute later.
"""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from fedappeal.flower.processes import replace_name
from fedappeal.system.process_end import end_with_parent

_TOKEN, _PARENT, _CA = "--token", "--parent-pid", "--root-certificates"


def start_task(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start the process of a task as Flower does, its token out of sight, and watch for its end.

    Args:
        arguments: its command, ``--token`` and the token among them.
        options: of `subprocess.Popen`.
    """
    at = arguments.index(_TOKEN)
    with tempfile.TemporaryFile() as file:
        file.write(arguments[at + 1].encode())
        file.seek(0)
        number = file.fileno()
        task = subprocess.Popen(
            [*arguments[:at], "--token-file", f"/dev/fd/{number}", *arguments[at + 2 :]],
            pass_fds=[number],
            preexec_fn=partial(end_with_parent, os.getpid()),
            **options,
        )
    Thread(target=report_killed, args=(task, arguments), name="end of a task", daemon=True).start()
    return task


def report_killed(task: "subprocess.Popen[bytes]", arguments: Sequence[str]) -> None:
    """Wait for the end of a task's process, and tell the SuperLink that the task failed where a signal killed it.

    Args:
        task: the process; one that ends by itself has told the SuperLink how.
        arguments: its command as Flower gave it: the SuperLink's address stands before ``--token``.
    """
    if (status := task.wait()) >= 0:
        return
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.supercore import log
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    at = arguments.index(_TOKEN)
    certificates = Path(arguments[arguments.index(_CA) + 1]).read_bytes() if _CA in arguments else None
    # Without Flower's retries, which end this process where the run has ended already.
    client = RuntimeHttpClient.from_server_address(
        arguments[at - 1],
        "--insecure" in arguments,
        certificates,
        [RuntimeVersionHttpInterceptor("flwr-serverapp"), RuntimeTokenHttpInterceptor(arguments[at + 1])],
    )
    details = f"its process (ServerApp) was killed by signal {-status}"
    with closing(client):
        try:
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=details))
        except httpx.HTTPError as error:
            log(logging.WARNING, "a run failed: %s; the SuperLink does not take that: %s", details, error)


def main() -> None:
    """Be the SuperExec, with the options of this process's command line."""
    end_with_parent(int(sys.argv[sys.argv.index(_PARENT) + 1]))  # Flower notices the end too, seconds later
    # Importing Flower takes a second.
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    from fedappeal.flower.superlink.steady_time import keep_steady_time

    keep_steady_time()
    replace_name(subprocess_executor, "subprocess", SimpleNamespace(Popen=start_task, DEVNULL=subprocess.DEVNULL))
    flower_superexec()


if __name__ == "__main__":
    main()
