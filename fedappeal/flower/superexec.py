"""Flower's SuperExec in this process, which starts a SuperLink's ServerApps: without a secret in the process list.

    python -P -m fedappeal.flower.superexec [options of `flower-superexec`]

Flower gives a ServerApp the token of its task on the command line, which every user of the machine can read. Here the
token is in a file without a name that the ServerApp inherits. This process is also killed as soon as its SuperLink is
gone, and the ServerApp with it: one that Flower only asks to end would record a round whose clients ended before.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from fedappeal.flower.processes import replace_name
from fedappeal.process_end import end_with_parent

_TOKEN, _PARENT = "--token", "--parent-pid"


def start_task(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start the process of a task as Flower does, its token out of sight.

    Args:
        arguments: its command, ``--token`` and the token among them.
        options: of `subprocess.Popen`.
    """
    at = arguments.index(_TOKEN)
    with tempfile.TemporaryFile() as file:
        file.write(arguments[at + 1].encode())
        file.seek(0)
        number = file.fileno()
        return subprocess.Popen(
            [*arguments[:at], "--token-file", f"/dev/fd/{number}", *arguments[at + 2 :]],
            pass_fds=[number],
            preexec_fn=partial(end_with_parent, os.getpid()),
            **options,
        )


def main() -> None:
    """Be the SuperExec, with the options of this process's command line."""
    end_with_parent(int(sys.argv[sys.argv.index(_PARENT) + 1]))  # Flower notices the end too, seconds later
    # Importing Flower takes a second.
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    from fedappeal.flower.steady_time import keep_steady_time

    keep_steady_time()
    replace_name(subprocess_executor, "subprocess", SimpleNamespace(Popen=start_task, DEVNULL=subprocess.DEVNULL))
    flower_superexec()


if __name__ == "__main__":
    main()
