"""What looks on while a command runs a federation: the terminal, trackers, metrics, the live page, a health check."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from client.process.heartbeat import no_beat
from fedappeal.cli.live_page import shown_page
from fedappeal.cli.option_groups import NO_PAGE, PageOptions, WatchOptions
from fedappeal.record.reader import Record
from fedappeal.runs.launch.observers import SeveralRuns
from fedappeal.runs.plan import RunPlan
from fedappeal.views.metrics.serving import NOWHERE, ConnectedClients, MetricsPort
from fedappeal.views.terminal.printing import as_json, complain, say, say_where
from fedappeal.views.terminal.progress import ended_text, one_run, several_runs
from fedappeal.views.terminal.view import RunView
from fedappeal.views.tracking.tracker import MakeTracker, chosen_trackers
from fedappeal.views.tracking.tracker_threads import track_run, track_runs

if TYPE_CHECKING:
    from fedappeal.federation.remote import RemoteSuperLink


@dataclass(frozen=True)
class CommandObservers:
    """A command's observers of its runs: `fedappeal.runs.launch.observers.Observers`.

    Attributes:
        trackers: make the trackers of a run, by name.
        metrics: where its metrics are served.
        page: where its page stands.
        alive: takes signs of life, which are good for some seconds.
        console: where lines are printed.
    """

    trackers: Mapping[str, MakeTracker] = field(default_factory=dict)
    metrics: MetricsPort = NOWHERE
    page: PageOptions = NO_PAGE
    alive: Callable[[float], None] = no_beat
    console: Console = field(default_factory=lambda: Console(highlight=False))

    def __post_init__(self) -> None:
        """Check the page's address.

        Raises:
            ConfigError: no page can stand there.
        """
        _ = self.page.place

    def screen(self, plan: RunPlan, data: str | None = None, name_of: Callable[[str], str] = str) -> RunView:
        """Return the terminal's view of a run."""
        return RunView(plan, self.console, data, name_of)

    def rounds(
        self, screen: RunView, name: str, completed: int
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
        """Return a block in which rounds of this process are shown."""
        return one_run(screen, name, completed=completed)

    @contextmanager
    def several(self, plans: Sequence[RunPlan]) -> Iterator[Sequence[SeveralRuns]]:
        """Show and track several runs while the block runs them, and show their last figures."""
        with (
            track_runs([plan.path for plan in plans], self.trackers, complain) as tracking,
            several_runs(plans, self.console) as shown,
        ):
            yield shown, tracking
        if self.console.is_terminal and not as_json():  # else each line stands above, where its run ended
            for plan in plans:
                if lines := Record(plan.path).history:
                    self.say(ended_text(plan, lines[-1]))
        say_where(self.console, "the runs' folders", plans[0].given_path.parent)

    @contextmanager
    def watch(
        self, folder: Path, superlink: "RemoteSuperLink | None" = None, connects: bool = False
    ) -> Iterator[Callable[["RemoteSuperLink"], None]]:
        """Track a run and serve its metrics and its page while the block runs it."""
        connected = ConnectedClients(superlink)

        def registry() -> Any:
            from fedappeal.views.metrics.run_metrics import FolderMetrics

            return FolderMetrics(lambda: folder, connected.count if connects else None)

        with (
            self._page(folder, superlink) as page_has,
            self.metrics.served(registry),
            track_run(folder, self.trackers, complain),
        ):

            def begun(own: "RemoteSuperLink") -> None:
                page_has(own)
                connected.superlink = own

            yield begun

    @contextmanager
    def _page(
        self, folder: Path, superlink: "RemoteSuperLink | None"
    ) -> Iterator[Callable[["RemoteSuperLink"], None]]:
        """Serve the run's page if wanted; yield the receiver of this command's SuperLink."""
        if (place := self.page.place) is None:
            yield lambda own: None
            return
        from fedappeal.views.live.actions import OwnRun, SubmittedRun
        from fedappeal.views.live.view import View

        if superlink is None:
            view = View(OwnRun(), folder, lists_runs=False)
        else:  # only an absolute path may be seen from here, too
            actions = SubmittedRun(superlink)
            view = View(actions, folder if folder.is_absolute() else None, superlink)

        def has(own: "RemoteSuperLink") -> None:
            view.superlink = own

        with shown_page(view, place, self.console, folder if superlink is None else None):
            yield has

    def say(self, line: str) -> None:
        """Print a line."""
        say(self.console, line)

    def complain(self, line: str) -> None:
        """Print a problem on standard error."""
        complain(line)


def observers_of(
    options: WatchOptions, settings: Mapping[str, Any], **more: Any
) -> tuple[CommandObservers, dict[str, Any]]:
    """Return a run's observers, and the settings without those of trackers.

    Args:
        options: how the command follows the run.
        settings: what the user wrote.
        more: further fields of the observers.

    Raises:
        ConfigError: a tracker, one of its settings or a page that is not allowed.
    """
    trackers, others = chosen_trackers(options.track or (), settings)
    metrics = MetricsPort(options.metrics_port, options.metrics_address)
    return CommandObservers(trackers, metrics, options, **more), others
