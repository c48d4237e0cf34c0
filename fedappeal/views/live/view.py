"""What the live page shows: a run's folder and its SuperLink, read again and again, in sections that change."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedappeal.federation.nodes import list_nodes
from fedappeal.federation.remote import RemoteSuperLink, list_runs
from fedappeal.flower.control import ControlError, Run
from fedappeal.protocol.foreign_text import printable
from fedappeal.record.files import CONFIG
from fedappeal.record.reader import RUNNING, WAITING
from fedappeal.views.live.actions import STOPPED, ForeignRun, NotDone
from fedappeal.views.live.clients import STATES, Clients
from fedappeal.views.live.run_state import RunState

ASKED_EVERY = 3.0
"""Seconds, at least, between two questions to the SuperLink; `ASKED_WITHIN`: at most."""
ASKED_WITHIN = 15.0
SHARE = 0.003
"""Of the time of one core, what reading, questions to a SuperLink, and charts take at most, each."""
MOST_RUNS = 50
_UNDER_WAY = ("pending", "starting", "running")

Tell = Callable[[str, object], None]


class View:
    """One live page's contents.

    Args:
        actions: what can be done from the page.
        path: the run's folder; None: that of the SuperLink's latest run, where this machine sees it.
        superlink: None: only the folder is read.
        lists_runs: whether the SuperLink's runs are shown; not those of one that has this run alone.

    Attributes:
        superlink: as above; `fedappeal local` has one as soon as its run has begun.
    """

    def __init__(
        self,
        actions: ForeignRun,
        path: Path | None = None,
        superlink: RemoteSuperLink | None = None,
        lists_runs: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.superlink = superlink
        self._actions, self._lists_runs, self._clock = actions, lists_runs, clock
        self._fixed = path is not None
        self._run = RunState(path) if path is not None else None
        self._connected = Clients()
        """The SuperLink's nodes, where there is no run."""
        self._runs: list[Run] = []
        self._problem = ""
        self._next_question = 0.0
        self._told: dict[str, Any] = {}

    @property
    def path(self) -> Path | None:
        """The folder of the run that is shown."""
        return self._run.path if self._run else None

    @property
    def over(self) -> bool:
        """Whether the run that is shown has ended, as far as was last read."""
        run = self._told.get("run")
        return bool(run and run["state"] not in (WAITING, RUNNING))

    def everything(self) -> tuple[str, object]:
        """Return the event that says everything that was last read."""
        rounds = self._run.rounds() if self._run else []
        return "all", {**self._told, "rounds": rounds, "states": STATES}

    def refresh(self, tell: Tell) -> None:
        """Read what is new, and tell it: sections that changed, and new rounds."""
        before = self._run
        self._ask()
        fresh, anew = self._run.read() if self._run else ([], False)
        sections = self._sections()
        changed = {name: value for name, value in sections.items() if self._told.get(name) != value}
        self._told = sections
        if anew or self._run is not before:
            tell(*self.everything())
            return
        if fresh:
            tell("rounds", fresh)
        for name, value in changed.items():
            tell(name, value)

    def stop(self, run_id: str) -> str:
        """Stop a run; return what was done.

        Args:
            run_id: as the SuperLink has it; empty: the run that is shown.

        Raises:
            NotDone: there is no such run; ControlError: the SuperLink refuses.
        """
        known = next((run for run in self._runs if str(run.run_id) == run_id), None) if run_id else self._own_run()
        if known is None and run_id:
            raise NotDone("the SuperLink knows no such run")
        return self._actions.stop(known.run_id if known else 0)

    def resume(self) -> str:
        """Continue the run that is shown; return what was done. Raises as `stop`."""
        offered = self._told.get("actions", {}).get("resume")
        if self._run is None or not offered:
            raise NotDone("there is no run here that can be continued from this page")
        return self._actions.resume(self._run.path)

    def _ask(self) -> None:
        """Ask the SuperLink for its nodes and runs, where it is time to."""
        superlink, began = self.superlink, self._clock()
        if superlink is None or began < self._next_question:
            return
        try:
            nodes = list_nodes(superlink.address, superlink.root_certificates)
            if self._lists_runs:
                self._runs = list_runs(superlink.address, superlink.root_certificates)
            self._problem = ""
        except ControlError as error:
            nodes, self._problem = None, printable(error)
        now = self._clock()
        # The whole time counts, for most of it is the SuperLink's; on a busy machine it is longer than the work.
        self._next_question = now + min(ASKED_WITHIN, max(ASKED_EVERY, (now - began) / SHARE))
        if not self._fixed and (path := self._latest()) is not None and (self._run is None or self._run.path != path):
            self._run = RunState(path)
        self._connected.nodes = nodes
        if self._run is not None:
            self._run.clients.nodes = nodes

    def _latest(self) -> Path | None:
        """Return the folder of the latest run that this machine sees; one that runs comes first."""
        latest = self._runs[::-1]
        for run in sorted(latest, key=lambda run: run.status not in _UNDER_WAY):
            path = Path(run.folder)
            if run.folder and path.is_absolute() and (path / CONFIG).is_file():
                return path
        return None

    def _own_run(self) -> Run | None:
        """Return the shown run as the SuperLink knows it: the latest one of this folder."""
        path = str(self.path)
        return next((run for run in reversed(self._runs) if run.folder == path), None)

    def _sections(self) -> dict[str, Any]:
        seen = self._run if self._run and (self._run.path / CONFIG).is_file() else None
        run = seen.section() if seen else None
        if run is not None:
            known = self._own_run()
            if known is not None and known.status in ("failed", STOPPED) and run["state"] in (WAITING, RUNNING):
                run |= {"state": known.status, "left": None}
        clients = seen.clients if seen else self._connected
        state, runtime = (run["state"], run["runtime"]) if run else ("", "")
        superlink = None
        if self.superlink is not None:
            superlink = {
                "address": self.superlink.address,
                "problem": self._problem,
                "runs": [{**each.as_dict(), "under-way": each.status in _UNDER_WAY} for each in self._listed()],
            }
        return {
            "run": run,
            "clients": clients.section(),
            "refused": clients.refused(),
            "failures": seen.failures() if seen else [],
            "superlink": superlink,
            "actions": self._actions.offers(state, runtime, self.path),
        }

    def _listed(self) -> list[Run]:
        return self._runs[: -MOST_RUNS - 1 : -1]
