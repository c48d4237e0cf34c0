"""How a run of this process is carried out: what is checked before, who watches it, where it lies."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.data.cache import pick_device
from fedappeal.api.client_data import central_evaluation
from fedappeal.runs.checks import check_learns_here
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.simulation import engine
from fedappeal.simulation.options import AUTO, SEQUENTIAL, Simulation
from fedappeal.simulation.process_wide import survive_fork
from fedappeal.views.tracking.tracker import MakeTracker
from server.server_run import Evaluate


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
    engine.check_own_models(plan.config, plan.task)
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
