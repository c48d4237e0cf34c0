"""Kill a run at each point at which it writes a file, continue it, and compare it with an undisturbed run.

    python -m tests.soak.kills --at-most 20 --out FOLDER

Simulated runs of several kinds are killed at each of their points, and one of them at each point of its `resume`; the
processes are forked from one that has loaded PyTorch. ``--at-most N`` takes N points of each kind, spread evenly;
``--local N`` kills as many runs of `fedappeal local`, client and server processes included. Exit code 0: each run was
killed, lost no finished round and ended as the undisturbed one.
"""

import argparse
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedappeal.record.lines import CONFIG, HISTORY, MEASUREMENTS, MODEL, PARTICIPATION, POLICIES, REQUIREMENTS
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors
from tests.hostile.kill_points import COUNTER, KillPoint

ROOT = Path(__file__).resolve().parents[2]
_SMALL = "--task digits --model logistic --local-steps 2 --seed 1"
SIMULATED = f"{_SMALL} --threads 1"
_SITE = """import os
from tests.hostile.kill_points import install_from
install_from(os.environ)
"""
_LOADED = (
    *("fedappeal.cli.commands", "fedappeal.cli.main", "fedappeal.views.terminal.progress", "fedappeal.cli.start"),
    *("fedappeal.simulation.engine", "server.server_run", "server.checkpoints"),
)
"""Modules that the command would load in each fork anew."""
EACH_ROUND, SELDOM = 0.0, 1e9
"""Least seconds between checkpoints: one after each round; none between the second and the last."""


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        options: of `fedappeal simulate`.
        apart: least seconds between checkpoints.
        on_disk: whether memory has no room for clients' own models.
    """

    options: str
    apart: float = EACH_ROUND
    on_disk: bool = False


PLAIN = Kind("")
KINDS = {
    "maxfl": Kind("--strategy maxfl --clients 3 --rounds 4"),
    "mixture": Kind(
        "--strategy fedavg --clients 4 --rounds 5 --clients-per-round 2 --participation appeal=0.4,defect=0.6", SELDOM
    ),
    "scaffold": Kind("--strategy scaffold --clients 4 --clients-per-round 2 --rounds 4"),
    "pfedme": Kind("--strategy pfedme --clients 3 --rounds 3 --evaluate-every 2", SELDOM),
    "fedalign": Kind("--strategy fedalign --clients 3 --unseen-clients 1 --rounds 4 --participation always"),
    "adagd": Kind("--strategy adagd --clients 3 --rounds 4"),
    "on-disk": Kind("--strategy maxfl --clients 3 --rounds 4 --use best --judge-on cross-fitted", on_disk=True),
}


class Wrong(AssertionError):
    """A run lost something; the message says what."""


def outcome(path: Path) -> dict[str, Any]:
    """What two runs of the same settings have to agree in."""
    arrays, values = read_safetensors(path / MODEL)
    kept = {name: Record(path).lines(name) for name in (PARTICIPATION, MEASUREMENTS, POLICIES, REQUIREMENTS)}
    history = [{key: value for key, value in line.items() if key != "seconds"} for line in Record(path).history]
    model = {name: array.tobytes() for name, array in arrays.items()}
    return {
        **kept,
        HISTORY: history,
        MODEL: model,
        "round": values["round"],
        "policies": set(map(str, kept[POLICIES])),
    }


def check_tidy(path: Path) -> None:
    """Check that a run that has ended left nothing half-written, and put nothing aside as damaged.

    Raises:
        Wrong: names what is left.
    """
    left = [file.name for file in path.rglob("*") if ".tmp" in file.name or "damaged" in file.name]
    damaged = [line for line in Record(path).events if line["event"] == "damaged"]
    if left or damaged:
        raise Wrong(f"left: {left}, damaged: {damaged}")


def saved_round(path: Path) -> int:
    """The last round of a killed run whose checkpoint a reader finds; 0: none."""
    from fedappeal.record.reader import Record
    from server.checkpoints import newest_usable

    if not (path / CONFIG).exists():
        return 0
    ended = Record(path).standing.end
    return int(ended["round"]) if ended else newest_usable(path).server_round


class Forks:
    """Runs the command in forks of this process, which has loaded what it needs.

    Args:
        folder: where what they say goes.
    """

    def __init__(self, folder: Path) -> None:
        import torch

        for name in _LOADED:
            importlib.import_module(name)
        torch.set_num_threads(1)  # this process never computes: PyTorch's threads do not survive a fork
        self._said, self._complained, self._counter = folder / "said", folder / "complained", folder / "counter"
        gc.collect()
        gc.freeze()

    def run(self, arguments: list[str], path: Path, kind: Kind = PLAIN, number: int = 0) -> tuple[int, int]:
        """Run the command, killed at a point; return its exit code (negative: the signal) and the points reached."""
        self._counter.write_bytes(b"")
        child = os.fork()
        if not child:
            self._become(arguments, KillPoint(str(path), str(self._counter), number), kind)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), self._counter.stat().st_size

    @property
    def said(self) -> str:
        """What the last command wrote to standard error, in one line."""
        return " ".join(self.complaints)[-2000:]

    @property
    def complaints(self) -> list[str]:
        """What the last command wrote to standard error, line by line."""
        return self._complained.read_text(errors="replace").splitlines()

    def _become(self, arguments: list[str], point: KillPoint, kind: Kind) -> None:
        code: Any = 70
        try:
            signal.alarm(300)
            for number, file in ((1, self._said), (2, self._complained)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
            import server.recorder

            server.recorder.SECONDS_APART, server.recorder.LARGEST_SHARE = kind.apart, 0
            if kind.on_disk:
                import fedappeal.simulation.own_models

                fedappeal.simulation.own_models.OWN_MODELS_BYTES = 0
            from fedappeal.cli.main import main

            sys.argv = ["fedappeal", *arguments]
            point.install()
            main()
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)


def spread(total: int, at_most: int) -> list[int]:
    """Return at most so many numbers from 1 to a total, spread evenly, the first and the last among them."""
    return sorted({round(number) for number in np.linspace(1, total, min(total, at_most or total))})


class Kills:
    """Kills of simulated runs, and what came of them.

    Args:
        folder: a new folder.
        at_most: points of each kind; 0: all.
    """

    def __init__(self, folder: Path, at_most: int) -> None:
        self._path, self._folder, self._at_most = folder / "run", folder, at_most
        self._forks = Forks(folder)
        self.count, self.wrong = 0, list[str]()

    def kill(self, name: str) -> None:
        """Kill runs of a kind at each of its points."""
        kind = KINDS[name]
        begin = ["simulate", *SIMULATED.split(), *kind.options.split(), "--out", str(self._path)]
        expected, points = self._undisturbed(begin, kind)
        for number in spread(points, self._at_most):
            with self._judged(f"{name}, point {number} of {points}"):
                self._killed(begin, number, kind)
                self._continue_and_compare(begin, kind, expected)

    def kill_resume(self, name: str) -> None:
        """Kill a run in its midst, then its `resume` at each of its points."""
        kind = KINDS[name]
        begin = ["simulate", *SIMULATED.split(), *kind.options.split(), "--out", str(self._path)]
        expected, points = self._undisturbed(begin, kind)
        self._killed(begin, points * 2 // 3, kind)
        killed = self._folder / "killed"
        shutil.copytree(self._path, killed)
        code, points = self._forks.run(self._resume, self._path, kind)
        if code:
            raise Wrong(f"{name}: resume ended with {code}: {self._forks.said}")
        for number in spread(points, self._at_most):
            with self._judged(f"{name}, point {number} of {points} of its resume"):
                shutil.rmtree(self._path)
                shutil.copytree(killed, self._path)
                self._killed(self._resume, number, kind, fresh=False)
                self._continue_and_compare(begin, kind, expected)
        shutil.rmtree(killed)

    @property
    def _resume(self) -> list[str]:
        return ["resume", str(self._path)]

    def _undisturbed(self, begin: list[str], kind: Kind) -> tuple[dict[str, Any], int]:
        shutil.rmtree(self._path, ignore_errors=True)
        code, points = self._forks.run(begin, self._path, kind)
        if code:
            raise Wrong(f"an undisturbed run ended with {code}: {self._forks.said}")
        check_tidy(self._path)
        return outcome(self._path), points

    def _killed(self, arguments: list[str], number: int, kind: Kind, fresh: bool = True) -> None:
        if fresh:
            shutil.rmtree(self._path, ignore_errors=True)
        code, _ = self._forks.run(arguments, self._path, kind, number)
        if code != -signal.SIGKILL:
            raise Wrong(f"it was not killed, but ended with {code}: {self._forks.said}")
        self.count += 1

    def _continue_and_compare(self, begin: list[str], kind: Kind, expected: dict[str, Any]) -> None:
        saved, recorded = saved_round(self._path), len(Record(self._path).history)
        if kind.apart == EACH_ROUND and saved < recorded - 1:
            raise Wrong(f"{recorded} rounds are recorded, and {saved} saved")
        begun = (self._path / CONFIG).exists()
        code, _ = self._forks.run(self._resume if begun else begin, self._path, kind)
        over = code == 2 and "has finished all its" in self._forks.said
        if code and not over:
            raise Wrong(f"it did not continue, but ended with {code}: {self._forks.said}")
        check_tidy(self._path)
        resumptions = Record(self._path).config.get("resumptions", [])
        if begun and not over and resumptions and resumptions[-1]["from-round"] < saved:
            raise Wrong(f"it continued after round {resumptions[-1]['from-round']}, and {saved} was saved")
        ended = outcome(self._path)
        if different := [name for name in expected if ended[name] != expected[name]]:
            raise Wrong(f"{different} are not those of the undisturbed run")

    @contextmanager
    def _judged(self, what: str) -> Iterator[None]:
        with judged(what, self.wrong):
            yield


@contextmanager
def judged(what: str, wrong: list[str]) -> Iterator[None]:
    """Note what is wrong with one kill, and go on with the next."""
    try:
        yield
    except Exception as error:
        wrong.append(f"{what}: {'' if isinstance(error, Wrong) else type(error).__name__ + ': '}{error}")
        print(f"WRONG: {wrong[-1]}", flush=True)


class LocalKills:
    """Kills of `fedappeal local`, at points of the command, its clients and its server.

    Args:
        folder: a new folder.
    """

    _OPTIONS = "--strategy maxfl --clients 2 --rounds 3 --participation always --page 0"
    _CLOSE = 1e-5
    """How far two models may be from each other: updates are summed in the order in which they come."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path, self._counter = folder, folder / "local", folder / "local-counter"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(_SITE)
        self._begin = ["local", *_SMALL.split(), *self._OPTIONS.split(), "--out", str(self._path)]
        self.count, self.wrong = 0, list[str]()

    def kill(self, at_most: int) -> None:
        """Kill at so many points, spread evenly over those of an undisturbed run."""
        code, points = self._run(self._begin)
        if code:
            raise Wrong(f"an undisturbed local run ended with {code}: {self._said}")
        check_tidy(self._path)
        expected = read_safetensors(self._path / MODEL)[0]
        # The number of points varies a little with the order in which the processes write.
        for number in spread(points * 19 // 20, at_most):
            with judged(f"local, point {number} of about {points}", self.wrong):
                shutil.rmtree(self._path)
                code, _ = self._run(self._begin, number)
                if code != -signal.SIGKILL:
                    raise Wrong(f"it was not killed, but ended with {code}: {self._said}")
                self.count += 1
                self._continue_and_compare(expected)

    def _continue_and_compare(self, expected: dict[str, Any]) -> None:
        saved, begun = saved_round(self._path), (self._path / CONFIG).exists()
        code, _ = self._run(["resume", str(self._path)] if begun else self._begin)
        if code and not (code == 2 and "has finished all its" in self._said):
            raise Wrong(f"it did not continue, but ended with {code}: {self._said}")
        check_tidy(self._path)
        resumptions = Record(self._path).config.get("resumptions", [])
        if resumptions and resumptions[-1]["from-round"] < saved:
            raise Wrong(f"it continued after round {resumptions[-1]['from-round']}, and {saved} was saved")
        lines = [
            (line["round"], line["joined"], line["absent"] + line["failed"]) for line in Record(self._path).history
        ]
        if lines != [(number, 2, 0) for number in (1, 2, 3)]:
            raise Wrong(f"its rounds, joined, and absent or failed are {lines}")
        model = read_safetensors(self._path / MODEL)[0]
        far = max(float(np.abs(model[name] - values).max()) for name, values in expected.items())
        if far > self._CLOSE:
            raise Wrong(f"its model is {far:g} from that of the undisturbed run")

    def _run(self, arguments: list[str], number: int = 0) -> tuple[int, int]:
        """Run the command, killed at a point, until all of its processes have ended; return as `Forks.run`."""
        self._counter.write_bytes(b"")
        point = KillPoint(str(self._path), str(self._counter), number).environment()
        paths = os.pathsep.join((str(self._folder / "site"), str(ROOT)))
        with (self._folder / "local-said").open("wb") as said:
            process = subprocess.run(
                [sys.executable, "-m", "fedappeal.cli.main", *arguments],
                cwd=ROOT,
                env={**os.environ, **point, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=300,
                check=False,
            )
        until = time.monotonic() + 30
        while alive := processes_with(f"{COUNTER}={self._counter}"):
            if time.monotonic() > until:
                raise Wrong(f"processes are left: {alive}")
            time.sleep(0.02)
        return process.returncode, self._counter.stat().st_size

    @property
    def _said(self) -> str:
        return " ".join((self._folder / "local-said").read_text(errors="replace").split())[-2000:]


def processes_with(variable: str) -> list[str]:
    """Return the command lines of the processes that have a variable ``NAME=VALUE`` in their environment."""
    alive = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            if variable.encode() in environ.read_bytes().split(b"\0"):
                alive.append((environ.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return alive


def main() -> int:
    """Kill, print what is wrong, and return 0 where nothing is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-most", type=int, default=0, help="points of each kind of simulated run; 0: all")
    parser.add_argument("--local", type=int, default=0, help="local runs that are killed")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of simulated runs; empty: none")
    parser.add_argument("--out", type=Path, help="a new folder; default: one in the system's temporary folder")
    given = parser.parse_args()
    folder = (given.out or Path(tempfile.mkdtemp(prefix="kills-"))).absolute()
    folder.mkdir(exist_ok=True)
    kinds = [name for name in given.kinds.split(",") if name]
    kills, local = Kills(folder, given.at_most), LocalKills(folder)
    acts: dict[str, Callable[[], None]] = {name: partial(kills.kill, name) for name in kinds}
    acts |= {f"resume of {name}": partial(kills.kill_resume, name) for name in kinds[:1]}
    for name, act in (acts | ({"local": partial(local.kill, given.local)} if given.local else {})).items():
        before, began = kills.count + local.count, time.monotonic()
        act()
        done, seconds = kills.count + local.count - before, time.monotonic() - began
        print(f"{name}: {done} kills in {seconds:.0f} s", flush=True)
    wrong = kills.wrong + local.wrong
    print(json.dumps({"simulated": kills.count, "local": local.count, "wrong": len(wrong)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
