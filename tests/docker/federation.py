"""A federation in containers: started by docker-compose.yml as it stands, watched through its results' folder."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.federation.nodes import PublicKey
from fedappeal.record.lines import CHECKPOINT, MODEL
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "fedappeal-test"
USER = 1000
ROUND_TIMEOUT = 15
SLOW = ("--task", "slow_digits:SlowDigits", "--local-steps", "20", "--set", "solo.steps=5")
"""Options of a run whose training takes 2 s on any machine."""


def docker(*arguments: str, timeout: float = 120, check: bool = True) -> str:
    """Run `docker` and return what it printed, both streams together."""
    done = subprocess.run(
        ["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    assert done.returncode == 0 or not check, f"docker {' '.join(arguments)}: {done.stdout}"
    return done.stdout


def wait_until(met: Callable[[], object], what: str, timeout: float = 120, poll: float = 0.1) -> float:
    """Wait until something is so; return the seconds that it took."""
    started = time.monotonic()
    while not met():
        assert time.monotonic() < started + timeout, f"not within {timeout:g} s: {what}"
        time.sleep(poll)
    return time.monotonic() - started


@dataclass
class Run:
    """One run: the one-shot container that submitted it, and its folder."""

    process: "subprocess.Popen[str]"
    folder: Path
    said: str = ""

    @property
    def history(self) -> list[dict[str, Any]]:
        return Record(self.folder).history

    @property
    def events(self) -> list[dict[str, Any]]:
        return Record(self.folder).events

    @property
    def participation(self) -> list[dict[str, Any]]:
        return Record(self.folder).decisions

    def decisions(self, client_id: str) -> dict[int, str]:
        """Return a client's decisions by round."""
        return {int(p["round"]): str(p["decision"]) for p in self.participation if p["client-id"] == client_id}

    def arrays(self, file: str = MODEL) -> dict[str, NDArray[np.generic]]:
        return read_safetensors(self.folder / file)[0]

    def checkpoint(self) -> tuple[int, dict[str, NDArray[np.generic]]]:
        """Return the round of the newest checkpoint, and the model in it."""
        arrays, values = read_safetensors(self.folder / CHECKPOINT)
        return int(values["round"]), {k: a for k, a in arrays.items() if k.startswith("model/")}

    def checkpoint_of(self, server_round: int) -> dict[str, NDArray[np.generic]]:
        """Return the model after a round that has just ended; its checkpoint follows its line of the history."""
        wait_until(lambda: self.checkpoint()[0] >= server_round, f"checkpoint of round {server_round}", 30, 0.02)
        number, model = self.checkpoint()
        assert number == server_round
        return model

    def begun(self, server_round: int) -> bool:
        return any(e["event"] == "round" and e["round"] == server_round for e in self.events)

    def wait_for_begin(self, server_round: int, timeout: float = 150) -> None:
        """Wait until a round has begun."""
        wait_until(lambda: self._goes_on() and self.begun(server_round), f"begin of round {server_round}", timeout)

    def wait_for_round(self, server_round: int, timeout: float = 150) -> None:
        """Wait until a round has ended."""
        wait_until(
            lambda: self._goes_on() and len(self.history) >= server_round, f"end of round {server_round}", timeout
        )

    def _goes_on(self) -> bool:
        assert self.process.poll() is None or self.process.returncode == 0, self.end()
        return True

    def end(self, timeout: float = 200) -> str:
        """Wait for the one-shot container to end; return all it said."""
        self.said += self.process.communicate(timeout=timeout)[0] or ""
        return self.said

    def finished(self, timeout: float = 200) -> None:
        """Wait for the end, and check that it is a good one."""
        said = self.end(timeout)
        assert self.process.returncode == 0, said
        assert self.events[-1]["event"] == "finished", self.events[-1]
        assert [line["round"] for line in self.history] == list(range(1, len(self.history) + 1))


@dataclass
class Federation:
    """A compose project of its own, with its results in a folder of the test.

    Attributes:
        project: name of the project.
        runs: folder of results.
        environment: further settings, as in .env.
    """

    project: str
    runs: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        settings = {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_ANSI": "never",
            "COMPOSE_PROGRESS": "quiet",
            "IMAGE": IMAGE,
            "RUNS_DIR": str(self.runs),
            "FLEET_PORT": "0",
            "FLEET_HTTP_PORT": "0",
            "UID": str(os.getuid() or USER),
            "GID": str(os.getgid() or USER),
        }
        # A .env of the checkout is the user's own; the tests are not to read it.
        return {**os.environ, **settings, **self.environment}

    def compose(self, *arguments: str, timeout: float = 300, check: bool = True) -> str:
        """Run `docker compose` and return what it printed."""
        done = subprocess.run(
            self._compose(arguments),
            env=self.env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0 or not check, f"docker compose {' '.join(arguments)}: {done.stdout}"
        return done.stdout

    def _compose(self, arguments: Sequence[str]) -> list[str]:
        files = ("-f", "docker-compose.yml", "-f", "tests/docker/slow/compose.yml")
        return ["docker", "compose", "--env-file", os.devnull, *files, *arguments]

    def start(self, clients: int) -> None:
        """Start the SuperLink and its clients, without a run."""
        self.compose("up", "--detach", "--no-build", "--scale", f"client={clients}", "superlink", "client")
        ready = [self.container("client", k + 1) for k in range(clients)]
        wait_until(lambda: all("this replica is" in self.logs(name) for name in ready), "replicas are clients")

    def stop(self) -> None:
        """End and remove all of it."""
        self.compose("down", "--volumes", "--timeout", "5", "--remove-orphans")

    def run(self, name: str, *options: str) -> Run:
        """Submit a run whose results are in the folder ``name``."""
        # Faults are tried, not decisions: clients are asked to join, and judge models as they are sent.
        willing = ("--mandatory-rounds=-1", "--goodwill=-1", "--judge-on", "train", "--adaptation-steps", "0")
        fixed = ("--out", name, "--round-timeout", str(ROUND_TIMEOUT), *willing)
        return self._one_shot(name, *fixed, *options)

    def resume(self, name: str) -> Run:
        """Go on with a run, whose task is the slow one of these tests."""
        return self._one_shot(name, "resume", f"runs/{name}", "--allow", "slow_digits")

    def _one_shot(self, name: str, *arguments: str) -> Run:
        command = self._compose(["run", "--rm", "-T", "--no-deps", "federation", *arguments])
        process = subprocess.Popen(
            command,
            env=self.env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return Run(process, self.runs / name)

    def container(self, service: str, number: int = 1) -> str:
        return f"{self.project}-{service}-{number}"

    def clients(self) -> list[str]:
        """Return the names of the client containers, by the number of the client that each plays."""
        names = docker(
            "ps", "--format", "{{.Names}}", "--filter", f"label=com.docker.compose.project={self.project}"
        ).split()
        by_number = {self.number(name): name for name in names if name.startswith(f"{self.project}-client-")}
        return [by_number[number] for number in sorted(by_number)]

    def number(self, container: str) -> int:
        """Return which client a container plays now."""
        found = [line.split()[-1] for line in docker("logs", container).splitlines() if "this replica is" in line]
        return int(found[-1])

    def client_id(self, container: str) -> str:
        """Return the id under which the run's folder knows a client."""
        key = self.runs / f"{container}.pub"
        path = f"/federation/clients/{self.number(container):02d}/client.pub"
        key.write_text(docker("exec", container, "cat", path))
        return PublicKey.read(key).client_id

    def status(self, container: str) -> list[str]:
        """Return what a client's owner sees of it."""
        state = f"/federation/clients/{self.number(container):02d}/state"
        return docker("exec", container, "fedappeal", "client", "status", "--state-dir", state).splitlines()

    def logs(self, container: str) -> str:
        return docker("logs", container)

    def kill(self, container: str) -> None:
        """`kill -9` what runs in a container; Docker starts it again."""
        docker("exec", container, "sh", "-c", "kill -9 -1", check=False)

    def health(self, container: str) -> str:
        """Return what Docker's health check says of a container."""
        return docker("inspect", "--format", "{{.State.Health.Status}}", container).strip()

    def starts(self, container: str) -> int:
        """Return how often Docker started a container again."""
        return int(docker("inspect", "--format", "{{.RestartCount}}", container))
