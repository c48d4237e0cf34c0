"""A long run under faults: every round is there once, memory stays flat, the model is that of the recorded joiners.

    python -m tests.soak.soak --rounds 500 --seed 0 --every 10 --out FOLDER

30 client processes, 5 a round, an evaluation every 10 rounds, a deadline of 5 s. Every 10 s one client is killed, or
stopped, or cut off; one that was killed is started again with its state. Exit code 0: all checks hold.
FOLDER/soak.json has the figures and everything that was done.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.federation.superlink import SuperLink
from fedappeal.record.folder import KIND, LOCAL
from fedappeal.record.follower import WatchedRun
from fedappeal.record.lines import INITIAL, MODEL
from fedappeal.record.reader import Record
from fedappeal.runs.launch.clients import ClientProcesses
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.system.files import read_safetensors
from tests.soak.faults import KINDS, Faults
from tests.soak.fork_server import PORTS, RESTART_AFTER, STARTS
from tests.soak.lines import Lines
from tests.soak.replay import joined_by_round, replay

SETTINGS: dict[str, Any] = {
    "task": "digits",
    "model": "logistic",
    "strategy": "fedavg",
    "participation": "always",
    "clients": 30,
    "clients-per-round": 5,
    "evaluate-every": 10,
    "round-timeout": 5.0,
    "local-steps": 5,
    "learning-rate": 0.05,
}
TOLERANCE = 1e-5
"""Largest difference between a value of the run's model (float32) and of the replayed one (float64)."""
GROWTH = {"SuperLink": 3.0, "ServerApp": 1.0}
"""Most MiB that a process may grow in 100 rounds, by a straight line through the second half of the run."""
LONG = 200
"""Rounds from which on growth is judged: a shorter run's line is that of caches that fill."""
LONGEST = 3 * (SETTINGS["round-timeout"] + 3 * 2.0)
"""Most seconds of a round: roll call, training, evaluation, each with its deadline and thrice the promised 2 s."""
_SAMPLE_EVERY = 2.0
_STATUS_EVERY = 2.0


class SoakedClients(ClientProcesses):
    """Clients that are started again where one is killed."""

    module = "tests.soak.fork_server"


@dataclass
class Memory:
    """Resident memory of the server's processes, as the run goes.

    Attributes:
        superlink: process id of the SuperLink; what it started is the ServerApp's side.
        samples: of each, the rounds done and MiB.
    """

    superlink: int
    samples: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: {name: [] for name in GROWTH})

    def sample(self, rounds: int) -> None:
        """Measure now."""
        link = psutil.Process(self.superlink)
        self.samples["SuperLink"].append((rounds, link.memory_info().rss / 2**20))
        below = 0.0
        for process in link.children(recursive=True):
            try:
                below += process.memory_info().rss / 2**20
            except psutil.NoSuchProcess:
                continue
        self.samples["ServerApp"].append((rounds, below))

    def growth(self, name: str) -> float:
        """Return MiB in 100 rounds over the second half, by least squares."""
        half = self.samples[name][-1][0] / 2
        rounds, sizes = np.array([sample for sample in self.samples[name] if sample[0] >= half]).T
        return float(np.polyfit(rounds, sizes, 1)[0] * 100)


def clients_of(clients: int) -> dict[str, int]:
    """Return which of the task's clients each client-id is."""
    return {f"client-{number:04d}": number for number in range(clients)}


def check_rounds(path: Path, config: RunConfig) -> list[str]:
    """Return what is wrong with the lines of a finished run: rounds that miss or come twice, joiners too many."""
    history, participation = Record(path).history, Record(path).decisions
    wrong: list[str] = []
    if [line["round"] for line in history] != list(range(1, config.rounds + 1)):
        wrong.append(f"the history has {len(history)} rounds, not 1 to {config.rounds} in order")
    joined = joined_by_round(participation)
    for line in history:
        ids = joined.get(line["round"], [])
        if len(ids) != line["joined"] or len(set(ids)) != len(ids) or len(ids) > config.clients_per_round:
            wrong.append(f"round {line['round']}: {line['joined']} joined, recorded are {sorted(ids)}")
    evaluated = [line["round"] for line in history if line["expected"]]
    due = [number for number in range(1, config.rounds + 1) if number % config.evaluate_every == 0]
    if evaluated != sorted({*due, config.rounds}):
        wrong.append(f"rounds {evaluated} were evaluated, not every {config.evaluate_every}th")
    return wrong


def difference(path: Path, config: RunConfig, joined: dict[int, list[str]]) -> float:
    """Return the largest difference between the run's model and that of the clients who joined."""
    initial, trained = read_safetensors(path / INITIAL)[0], read_safetensors(path / MODEL)[0]
    expected = replay(config, initial, joined, clients_of(config.clients))
    assert trained.keys() == expected.keys()
    return max(float(np.abs(trained[name] - expected[name]).max()) for name in expected)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def soak(folder: Path, rounds: int, seed: int, every: float) -> dict[str, Any]:
    """Run it; return figures, what was done, and what is wrong (nothing: ``wrong`` is empty)."""
    config = RunConfig.parse_recorded({**SETTINGS, "rounds": rounds, "seed": seed})
    path, starts = folder / "run", folder / "starts.jsonl"
    plan = RunPlan.of(config, path)
    plan.folder({KIND: LOCAL})
    settings = config.model_copy(update={"out": str(path), "resume": True, "initial_model": str(path / INITIAL)})
    superlink = SuperLink(path / "logs")
    clients = SoakedClients(plan)
    started: set[int] = set()
    began = time.monotonic()
    with ExitStack() as stack:
        stack.callback(superlink.stop)
        stack.callback(clients.end)
        lines = Lines(config.clients)
        stack.callback(lines.close)
        stack.enter_context(environment(**{PORTS: json.dumps(lines.ports), STARTS: str(starts)}))
        clients.start()
        superlink.start()
        lines.upstream = superlink.fleet_address
        clients.connect(superlink.fleet_address)
        clients.wait_until_loaded()
        remote = RemoteSuperLink(superlink.control_address)
        run_id = remote.submit(settings)
        memory = Memory(superlink.pid)
        faults = Faults(
            seed,
            every,
            lines,
            lambda: {line["client"]: line["pid"] for line in Record(starts.parent).lines(starts.name)},
        )
        stack.callback(faults.end)
        follower = WatchedRun(path, _say)
        sampled = asked = time.monotonic()
        while not follower.finished:
            follower.read()
            done = len(Record(path).history)
            if done and (fault := faults.step()):
                print(f"round {done + 1}: {fault.kind} of client {fault.client}, {fault.seconds:g} s", flush=True)
            if time.monotonic() >= sampled + _SAMPLE_EVERY:
                sampled = time.monotonic()
                memory.sample(done)
                started |= {process.pid for process in psutil.Process().children(recursive=True)}
            if time.monotonic() >= asked + _STATUS_EVERY:
                asked = time.monotonic()
                clients.check()
                status = remote.run_status(run_id)
                follower.read()
                if follower.failed or (status.finished and not follower.finished):
                    raise SystemExit(f"the run failed: {follower.failed or status} (see {path / 'logs'})")
            time.sleep(0.2)
        seconds = time.monotonic() - began
        time.sleep(2 * RESTART_AFTER)  # the client that was killed last is started again, too
    started |= {line["pid"] for line in Record(starts.parent).lines(starts.name)}
    return _judged(
        path, config, memory, faults, started, len(Record(starts.parent).lines(starts.name)) - config.clients, seconds
    )


def _judged(
    path: Path,
    config: RunConfig,
    memory: Memory,
    faults: Faults,
    started: set[int],
    restarts: int,
    seconds: float,
) -> dict[str, Any]:
    wrong = check_rounds(path, config)
    history, joined = Record(path).history, joined_by_round(Record(path).decisions)
    off = difference(path, config, joined)
    last = max(joined)
    without = difference(path, config, {**joined, last: joined[last][:-1]})
    if (longest := max(line["seconds"] for line in history)) > LONGEST:
        wrong.append(f"a round took {longest:.1f} s; {LONGEST:g} is allowed")
    if off > TOLERANCE:
        wrong.append(f"the model differs by {off:.3g} from that of the recorded joiners; {TOLERANCE:g} is allowed")
    growth = {name: memory.growth(name) for name in GROWTH}
    for name, most in GROWTH.items():
        if config.rounds >= LONG and growth[name] > most:
            wrong.append(f"the {name} grew by {growth[name]:.1f} MiB in 100 rounds; {most:g} is allowed")
    stray = sorted(pid for pid in started if psutil.pid_exists(pid) and _ours(pid, path))
    if stray:
        wrong.append(f"processes {stray} are left")
    kills = faults.count("kill")
    if restarts != kills:
        wrong.append(f"{kills} clients were killed, and {restarts} started again")
    return {
        "wrong": wrong,
        "rounds": len(history),
        "seconds": round(seconds, 1),
        "faults": {kind: faults.count(kind) for kind in KINDS},
        "joined": sum(line["joined"] for line in history),
        "rounds-with-failures": sum(line["failed"] > 0 for line in history),
        "rounds-with-absences": sum(line["absent"] > 0 for line in history),
        "rounds-short-of-joiners": sum(line["joined"] < config.clients_per_round for line in history),
        "longest-round": longest,
        "accuracy": history[-1].get("accuracy"),
        "difference": off,
        "difference-without-one-joiner": without,
        "growth-mib-in-100-rounds": {name: round(value, 2) for name, value in growth.items()},
        "mib": {name: [(n, round(size, 1)) for n, size in sizes] for name, sizes in memory.samples.items()},
        "done": [{"at": at, **asdict(fault)} for at, fault in faults.done],
        "processes": len(started),
    }


def _ours(pid: int, path: Path) -> bool:
    """Whether a process is one of the run's: its id may be another process's by now."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(path.parent) in str(process.environ())
    except psutil.NoSuchProcess:
        return False


def _say(kind: str, line: dict[str, Any]) -> None:
    if kind == "round" and (line["failed"] or line["absent"] or line["expected"]):
        accuracy = f", accuracy {line['accuracy']:.3f}" if "accuracy" in line else ""
        absent = f"{line['absent']} absent, {line['failed']} failed"
        print(f"round {line['round']}: {line['joined']} joined, {absent}{accuracy}", flush=True)


def main() -> int:
    """Run it, print the figures, and return 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds from one fault to the next")
    parser.add_argument("--out", type=Path, help="a new folder; default: one in the system's temporary folder")
    options = parser.parse_args()
    folder = (options.out or Path(tempfile.mkdtemp(prefix="soak-"))).absolute()
    print(
        f"soak: {options.rounds} rounds, seed {options.seed}, a fault every {options.every:g} s, in {folder}",
        flush=True,
    )
    report = soak(folder, options.rounds, options.seed, options.every)
    (folder / "soak.json").write_text(json.dumps(report, indent=1) + "\n")
    for name, value in report.items():
        if name not in ("wrong", "mib", "done"):
            print(f"{name}: {value}")
    for line in report["wrong"]:
        print(f"WRONG: {line}")
    print(f"record: {folder / 'soak.json'}")
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
