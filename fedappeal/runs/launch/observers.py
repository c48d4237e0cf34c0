"""The observers of a run: screen, trackers, metrics, page.

And how a run ends that did not finish.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedappeal.core.places import is_authors, reason
from fedappeal.runs.checks import resume_command
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.model import Failure
from fedappeal.system.plain_files import OF_THE_DISK

if TYPE_CHECKING:  # which loads all of Flower's Control API
    from fedappeal.federation.remote import RemoteSuperLink

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
NOT_BEGUN = "no run had begun"
"""In place of how an interrupted run continues, where its folder holds none yet."""


class RunUnfinished(Failure):
    """A run did not finish."""

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__(*lines)
        self.code = code


@contextmanager
def resumable(plans: Sequence[RunPlan], interrupted: str, *failures: type[Exception]) -> Iterator[None]:
    """Say how runs continue that Ctrl-C, a disk or one of these failures ends.

    Args:
        plans: the runs.
        interrupted: what is said first of a run that Ctrl-C ended.
        failures: errors whose message says in one line why a run ended.

    Raises:
        RunUnfinished: in place of these, and of an error of an author's code.
    """
    try:
        yield
    except KeyboardInterrupt:
        line = f"interrupted; {interrupted}; {_continue_with(plans) or NOT_BEGUN}"
        raise RunUnfinished(line, code=INTERRUPTED) from None
    except failures as error:
        raise RunUnfinished(f"{error}; {_continue_with(plans) or NOT_BEGUN}") from None
    except OSError as error:
        if error.errno not in OF_THE_DISK or not (again := _continue_with(plans)):
            raise
        raise RunUnfinished(f"{error}; {again}") from None
    except Exception as error:
        if not is_authors(error):
            raise
        raise RunUnfinished(reason(error)) from error


def _continue_with(plans: Sequence[RunPlan]) -> str:
    """Return how a run continues; empty: none has begun."""
    if not any(plan.begun for plan in plans):
        return ""
    if len(plans) > 1:
        return f"continue with the same command and {shlex.join(['--out', str(plans[0].given_path.parent)])}"
    return f"continue with: {resume_command(plans[0].config, plans[0].given_path)}"


class Screen(Protocol):
    """The view of one run."""

    rounds: list[dict[str, Any]]

    def heading(self) -> None:
        """Show what is about to run."""

    def start(self, doing: str = ...) -> None:
        """Show what is about to run, and begin to show progress."""

    def doing(self, text: str) -> None:
        """Show what is being done, or waited for, before rounds are shown."""

    def watch(self, kind: str, line: dict[str, Any]) -> None:
        """Show a new line of the run's folder."""

    def stop(self) -> None:
        """Stop showing progress."""

    def summary(self) -> None:
        """Show what came out."""


class SeveralRuns(Protocol):
    """The view, or the trackers, of several runs."""

    def update(self) -> None:
        """Look at the runs' folders; called a few times a second."""

    def ended(self, number: int, reason: str) -> None:
        """Record that a run is over.

        ``reason``: why it failed, or empty.
        """


class Observers(Protocol):
    """The observers of runs: screen, trackers, metrics and page."""

    def screen(self, plan: RunPlan, data: str | None = None, name_of: Callable[[str], str] = str) -> Screen:
        """Return the view of a run.

        Args:
            plan: the run.
            data: how the data is spread over the clients; None: as the task says; empty: that is not known here.
            name_of: returns what a client-id is called.
        """

    def rounds(
        self, screen: Any, name: str, completed: int
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
        """Return a block that shows this process's rounds; it yields their receiver."""

    def several(self, plans: Sequence[RunPlan]) -> AbstractContextManager[Sequence[SeveralRuns]]:
        """Return a block that shows and tracks several runs; it yields both observers."""

    def watch(
        self, folder: Path, superlink: "RemoteSuperLink | None" = None, connects: bool = False
    ) -> AbstractContextManager[Callable[["RemoteSuperLink"], None]]:
        """Return a block in which a run's trackers, metrics and page work.

        Args:
            folder: the run's.
            superlink: the long-running SuperLink that has it; None: the run is this command's own.
            connects: whether the run's clients connect to a SuperLink.

        Yields:
            What is told the command's own SuperLink, once that has begun.
        """

    def say(self, line: str) -> None:
        """Show a line."""

    def complain(self, line: str) -> None:
        """Say that something is wrong with the run's files."""

    def alive(self, seconds: float) -> None:
        """Take note of a sign of life, which is good for some seconds."""
