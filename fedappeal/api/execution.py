"""How a run of this process is carried out: what is checked before, who watches it, where it lies."""

import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client.data.cache import pick_device
from fedappeal.api.client_data import central_evaluation
from fedappeal.api.progress import Shown
from fedappeal.runs.checks import check_learns_here
from fedappeal.runs.plan import RunPlan, simulate_plan
from fedappeal.settings.config import ConfigError
from fedappeal.simulation import engine
from fedappeal.simulation.options import AUTO, SEQUENTIAL, Simulation
from fedappeal.views.terminal.progress import described
from fedappeal.views.tracking.following import tracked
from fedappeal.views.tracking.tracker import MakeTracker
from server.run import Evaluate
from strategies.rounds.round import RoundRecord


@dataclass(frozen=True)
class Watching:
    """What a program wants to see of a run.

    Attributes:
        evaluate: a central test set, or a function; None: none.
        on_round: called with each round; None: nothing is.
        quiet: show no progress.
        trackers: make what records the run, by name.
    """

    evaluate: Any = None
    on_round: Callable[..., Any] | None = None
    quiet: bool = False
    trackers: Mapping[str, MakeTracker] = field(default_factory=dict)

    def central(self, plan: RunPlan, how: Simulation) -> Evaluate | None:
        """Return what measures the model centrally; None: nothing does."""
        if self.evaluate is None:
            return None
        return central_evaluation(self.evaluate, plan.task, plan.config.seed, pick_device(how.device))


def check_run(plan: RunPlan, how: Simulation, watching: Watching) -> None:
    """Check a planned run as far as it can be checked without starting it.

    Raises:
        ConfigError: for what is not allowed.
    """
    check_learns_here(plan, how.device)
    if how.mode not in (AUTO, SEQUENTIAL):
        engine.choose_mode(plan.plugins, how, plan.task)
    watching.central(plan, how)
    if watching.on_round is not None and not callable(watching.on_round):
        raise ConfigError(f"on_round = {watching.on_round!r} is not allowed: a callable is")


def carried_out(
    plan: RunPlan, how: Simulation, watching: Watching, show: Shown, finished: Callable[[RoundRecord], Any]
) -> bool:
    """Run a planned run, or continue it, in its folder; return whether Ctrl-C has ended it.

    Args:
        plan: the run.
        how: how it is simulated.
        watching: what the program wants to see of it.
        show: shows how far it is.
        finished: makes what ``on_round`` is given.
    """

    def on_round(record: RoundRecord) -> None:
        text = described(plan.name, record.as_line(), plan.task.metric)
        show(text, record.server_round, plan.config.rounds)
        if watching.on_round is not None:
            watching.on_round(finished(record))

    evaluate, folder = watching.central(plan, how), plan.folder(how.runtime())
    try:
        with tracked(plan.path, watching.trackers, warnings.warn):
            simulate_plan(plan, how, folder, on_round=on_round, evaluate=evaluate)
    except KeyboardInterrupt:
        return True
    return False


def new_folder(name: str) -> Path:
    """Make a folder ``runs/DATE-TIME-NAME``, with a number behind where there is one; return it.

    Raises:
        ConfigError: it cannot be made.
    """
    first = Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{name}".replace(":", ".")).absolute()
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
