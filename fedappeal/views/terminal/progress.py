"""How far simulated runs are: a progress bar in a terminal, else lines."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.metric import Metric
from fedappeal.record.columns import HEADLINE, shown_in
from fedappeal.record.follower import Follower
from fedappeal.record.reader import Record
from fedappeal.runs.launch.observers import SeveralRuns
from fedappeal.runs.plan import RunPlan
from fedappeal.views.terminal.printing import as_json, say
from fedappeal.views.terminal.view import RunView

ROUNDS_APART = 2.0
"""Fewest seconds between two lines of rounds, except for the last round's."""
STANDS_APART = 10.0
"""Seconds between two lines that say how far several runs are."""

OnRound = Callable[[Mapping[str, Any]], None]
"""Told of each round: its line of the history, with its decisions."""


def progress_text(name: str, line: Mapping[str, Any], metric: Metric) -> str:
    """Return a run's name and its latest figures."""
    columns = shown_in(HEADLINE, metric)
    parts = [f"{column.title} {line[column.key]:.3f}" for column in columns if column.key in line]
    return printable(" ".join([name, *parts]))


def ended_text(plan: RunPlan, line: Mapping[str, Any]) -> str:
    """Return a run's name, its last round, and the figures of it."""
    name = f"{plan.name}: after round {line['round']}:"
    text = progress_text(name, line, Record(plan.path).metric)
    return f"{text} no client has measured the model" if text == printable(name) else text


@contextmanager
def one_run(
    view: RunView, name: str, clock: Callable[[], float] = time.monotonic, completed: int = 0
) -> Iterator[OnRound]:
    """Show one run's rounds while the block runs.

    Args:
        view: prints the lines; its console says whether it is a terminal.
        name: what the progress bar calls the run.
        clock: seconds.
        completed: rounds that are over already, of a run that continues.
    """
    if view.console.is_terminal and not as_json():
        with bars(view.console) as progress:
            bar = progress.add_task(name, total=view.config.rounds, completed=completed)
            yield lambda line: progress.update(
                bar, completed=line["round"], description=progress_text(name, line, view.metric)
            )
        return
    lines = _RoundLines(view, clock)
    try:
        yield lines.add
    finally:
        lines.end()


@contextmanager
def several_runs(
    plans: Sequence[RunPlan], console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[SeveralRuns]:
    """Show several runs' progress during the block: bars, or lines without a terminal."""
    if console.is_terminal and not as_json():
        with bars(console) as progress:
            yield _SeveralBars(plans, progress)
    else:
        yield _SeveralLines(plans, console, clock)


def bars(console: Console) -> Progress:
    """Return progress bars with description, finished rounds, and time left."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


class _RoundLines:
    """A printer of round lines, at most one in `ROUNDS_APART` seconds.

    The last is always printed.
    """

    def __init__(self, view: RunView, clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._next = clock()
        self._unprinted: dict[str, Any] | None = None

    def add(self, line: Mapping[str, Any]) -> None:
        self._unprinted = dict(line)
        if as_json() or self._clock() >= self._next:
            self._next = self._clock() + ROUNDS_APART
            self.end()

    def end(self) -> None:
        """Print the latest round if it was not printed yet."""
        if self._unprinted is not None:
            self._view.watch("round", self._unprinted)
        self._unprinted = None


class _Several:
    """Several runs with their latest lines; empty before a run's first round ends."""

    def __init__(self, plans: Sequence[RunPlan]) -> None:
        self._plans = plans
        self._followers = [Follower(plan.path) for plan in plans]
        self._lines: list[Mapping[str, Any]] = [{} for _ in plans]

    def _latest(self) -> Iterator[tuple[RunPlan, Mapping[str, Any]]]:
        """Read the new lines; yield each run with its latest one."""
        for number, follower in enumerate(self._followers):
            if rounds := follower.read().rounds:
                self._lines[number] = rounds[-1]
        return zip(self._plans, self._lines, strict=True)


class _SeveralBars(_Several):
    def __init__(self, plans: Sequence[RunPlan], progress: Progress) -> None:
        super().__init__(plans)
        self._progress = progress
        self._bars = [progress.add_task(plan.name, total=plan.config.rounds) for plan in plans]

    def update(self) -> None:
        for bar, (plan, line) in zip(self._bars, self._latest(), strict=True):
            if line:
                text = progress_text(plan.name, line, Record(plan.path).metric)
                self._progress.update(bar, completed=line["round"], description=text)

    def ended(self, number: int, reason: str) -> None:
        self.update()


class _SeveralLines(_Several):
    def __init__(self, plans: Sequence[RunPlan], console: Console, clock: Callable[[], float]) -> None:
        super().__init__(plans)
        self._console, self._clock = console, clock
        self._over: set[int] = set()
        self._next = clock() + STANDS_APART

    def update(self) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + STANDS_APART
        running = [
            f"; {plan.name} round {line['round']} of {plan.config.rounds}"
            for number, (plan, line) in enumerate(self._latest())
            if number not in self._over and line
        ]
        say(self._console, self._how_many() + "".join(running))

    def ended(self, number: int, reason: str) -> None:
        self._over.add(number)
        plan, line = list(self._latest())[number]
        if reason:
            text = f"{plan.name} failed: {reason}"
        elif line:
            text = ended_text(plan, line)
        else:
            text = f"{plan.name}: no rounds were run"
        say(self._console, f"{text} ({self._how_many()})")

    def _how_many(self) -> str:
        return f"{len(self._over)} of {len(self._plans)} runs have ended"
