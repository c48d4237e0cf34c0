"""The client processes of a federation on this machine.

One process loads PyTorch and the data, and forks them.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from functools import partial
from typing import ClassVar

from client.limits.limits import OFF
from fedappeal.federation.superlink import import_paths
from fedappeal.flower.processes import QUIET
from fedappeal.record.lines import INITIAL
from fedappeal.runs.plan import RunPlan
from fedappeal.system.files import private_folder, private_log
from fedappeal.system.plain_files import last_line
from fedappeal.system.process_end import end_child, end_with_parent


class ClientsEnded(RuntimeError):
    """The client processes ended during the run; the message is one line."""


class ClientProcesses:
    """One process for each of a run's clients, forked from one parent (`client.process.fork_server`).

    They are killed when the thread that called `start` has ended, as by ``kill -9``; their states are made for that.

    Args:
        plan: the run, whose seen and unseen clients are started. In its folder are the initial model, which the
            parent writes if it is not there, the clients' durable states and their logs.
        device: where they train.
    """

    module: ClassVar[str] = "client.process.fork_server"
    """What the parent runs."""

    def __init__(self, plan: RunPlan, device: str = "auto") -> None:
        config, logs = plan.config, plan.path / "logs"
        total = config.clients + config.unseen_clients
        # The user of this machine named these packages, and is the owner of these clients.
        allowed = ",".join(plan.plugins.packages())
        self._initial = plan.path / INITIAL
        self._states = plan.path / "clients"
        self._log = logs / "clients.log"
        self._plan = {
            "clients": [
                {
                    "partition-id": i,
                    "num-partitions": total,
                    "allow": allowed,
                    "set": plan.plugins.owner_files(),
                    "limits": OFF,  # that user also chose what the run asks of them
                    "state-dir": str((self._states / f"{i:04d}").absolute()),
                    "data-dir": plan.data_dir,
                    "device": device,
                }
                for i in range(total)
            ],
            "strategy": config.strategy,
            "settings": config.task_settings().as_config(),
            "initial": str(self._initial.absolute()),
            "initial-model": config.initial_model,
            "logs": str(logs.absolute()),
        }
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id of the parent of all clients."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the parent, which loads everything; the clients follow on `connect`."""
        private_folder(self._log.parent)
        private_folder(self._states)
        with private_log(self._log) as log:
            self._process = subprocess.Popen(
                # -P: the current folder may hold a client.py of the user's.
                [sys.executable, "-P", "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid()),
                # One thread a client: they share the processor, and a fork must not find a pool of threads.
                env={**os.environ, **QUIET, "OMP_NUM_THREADS": "1", **import_paths(os.environ)},
            )
        self._write(json.dumps(self._plan))

    def connect(self, fleet_address: str) -> None:
        """Let the clients connect to a SuperLink's Fleet API, as soon as everything is loaded."""
        self._write(fleet_address)

    def wait_until_loaded(self) -> None:
        """Wait until the initial model is written.

        Raises:
            ClientsEnded: if the processes ended instead.
        """
        while not self._initial.exists():
            self.check()
            time.sleep(0.02)

    def check(self) -> None:
        """Check that the processes run.

        Raises:
            ClientsEnded: if they do not; with what they said last.
        """
        if self._process is None or self._process.poll() is None:
            return
        reason = last_line(self._log) or f"exit code {self._process.returncode}"
        raise ClientsEnded(f"the client processes ended: {reason} (see {self._log})")

    def end(self, timeout: float = 5.0) -> None:
        """End all clients: politely, then for certain."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        end_child(process, timeout)

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `check` says why it ended
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
