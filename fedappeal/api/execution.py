"""How a run of this process is carried out: what is checked before, who watches it, where it and its models lie."""

import itertools
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.training.devices import pick_device
from fedappeal.api.client_data import central_evaluation
from fedappeal.protocol.packing import Arrays
from fedappeal.record.folder import RunFolder, dated_name
from fedappeal.runs.checks import check_learns_here
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.simulation import engine
from fedappeal.simulation.options import AUTO, SEQUENTIAL, Simulation
from fedappeal.simulation.process_wide import survive_fork
from fedappeal.system.files import CARD, read_safetensors, write_safetensors
from fedappeal.views.tracking.tracker import MakeTracker
from server.server_run import Evaluate, run_card


class TemporaryFolder:
    """A folder deleted with the last reference to this object, or with the process.

    Attributes:
        path: where a run, or the runs of a sweep, lie in it.
    """

    def __init__(self, name: str) -> None:
        """Make the folder; ``name`` is the run's."""
        root = Path(tempfile.mkdtemp(prefix="fedappeal-"))
        self.path = root / dated_name(name)
        weakref.finalize(self, _delete, root, os.getpid())


def _delete(root: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child ends before its parent
        shutil.rmtree(root, ignore_errors=True)


@dataclass(frozen=True)
class Watching:
    """A program's callbacks for a run: per round, central evaluation, kept models.

    Attributes:
        evaluate: a central test set, or a function; None: none.
        on_round: called with each round; None: nothing is.
        quiet: show no progress.
        trackers: make what records the run, by name.
        keep_models: rounds, the last ones, whose models stay in the folder.
    """

    evaluate: Any = None
    on_round: Callable[..., Any] | None = None
    quiet: bool = False
    trackers: Mapping[str, MakeTracker] = field(default_factory=dict)
    keep_models: int = 0

    def central(self, plan: RunPlan, how: Simulation) -> Evaluate | None:
        """Return the central evaluation of a run; None if the program gives none."""
        if self.evaluate is None:
            return None
        return central_evaluation(self.evaluate, plan.task, plan.config.seed, pick_device(how.device))


def check_run(plan: RunPlan, how: Simulation, watching: Watching) -> None:
    """Check a planned run as far as possible without starting it.

    Raises:
        ConfigError: for what is not allowed.
    """
    survive_fork()  # the checks calculate already
    check_learns_here(plan, how.device)
    if how.mode not in (AUTO, SEQUENTIAL):
        engine.choose_mode(plan.plugins, how, plan.task)
    watching.central(plan, how)
    if watching.on_round is not None and not callable(watching.on_round):
        raise ConfigError(f"on_round = {watching.on_round!r} is not allowed: a callable is")
    if not isinstance(watching.keep_models, int) or watching.keep_models < 0:
        raise ConfigError(f"keep_models = {watching.keep_models!r} is not allowed: a number of rounds; 0: none is")


def new_folder(name: str) -> Path:
    """Make a folder ``runs/NAME``, numbered if it exists; return it.

    Raises:
        ConfigError: it cannot be made.
    """
    first = Path("runs", name).absolute()
    for number in itertools.count(1):
        path = first if number == 1 else first.with_name(f"{first.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue  # runs in threads, and short ones, begin in the same second
        except OSError as error:
            raise ConfigError(f"out = '{path}' is not allowed: {error.strerror}") from None
        return path
    raise AssertionError


_KEPT = re.compile(r"model-([0-9]{1,18})\.safetensors")


def keep_model(plan: RunPlan, server_round: int, arrays: Arrays, most: int) -> None:
    """Write a finished round's model, and delete all but the latest ``most``."""
    folder = RunFolder.open(plan.path)
    card = run_card(plan.task, plan.config, folder, server_round, arrays)
    write_safetensors(_file(plan.path, server_round), arrays, {CARD: card.to_json()}, durable=False)
    for number in _rounds(plan.path):
        if number <= server_round - most:
            _file(plan.path, number).unlink()


def kept_model(path: Path, server_round: int) -> Arrays:
    """Return the model of a round whose file is in a run's folder.

    Raises:
        ConfigError: it is not there, or cannot be read.
    """
    file = _file(path, server_round)
    if not file.exists():
        rounds = ", ".join(map(str, _rounds(path))) or "none is"
        raise ConfigError(f"round = {server_round} is not allowed: keep_models has kept no such model ({rounds})")
    return read_safetensors(file)[0]


def _file(path: Path, server_round: int) -> Path:
    return path / f"model-{server_round}.safetensors"


def _rounds(path: Path) -> list[int]:
    matches = (_KEPT.fullmatch(file.name) for file in path.glob("model-*.safetensors"))
    return sorted(int(match[1]) for match in matches if match)
