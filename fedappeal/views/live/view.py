"""What the live page shows: a run's folder and its SuperLink, read again and again, in sections that change."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedappeal.federation.remote import RemoteSuperLink, ServedCertificate
from fedappeal.flower.control import ControlError, ListedRun, Node
from fedappeal.protocol.foreign_text import printable
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CONFIG
from fedappeal.record.looks import LOOK_FIELDS
from fedappeal.record.reader import INTERRUPTED, RUNNING, WAITING
from fedappeal.views.live.actions import STOPPED, ForeignRun, NotDone
from fedappeal.views.live.clients import STATES, RunClients
from fedappeal.views.live.live_run import LiveRun
from fedappeal.views.live.members import CHANGES, Members

ASKED_EVERY = 3.0
"""Seconds, at least, between two questions to the SuperLink; `ASKED_WITHIN`: at most."""
ASKED_WITHIN = 15.0
LOOKED_EVERY = 0.75
"""Seconds, at least, between two looks at the run's folder, while a page is open; `LOOKED_WITHIN`: at most."""
LOOKED_WITHIN = 1.5
SHARE = 0.003
"""Of the time of one core, what reading, questions to a SuperLink, and charts take at most, each."""
STAYS = 3.0
"""Seconds for which an open page outlives the end of its run: it fetches the last charts."""
_OPEN = 2.5
"""Seconds within which an open page asks again."""
_PATIENCE = 5.0
"""Seconds for which the end of a run's command waits for another look."""
MOST_RUNS = 50
_UNDER_WAY = ("pending", "starting", "running")
_UNSAID = (WAITING, RUNNING, INTERRUPTED)
"""States of which the SuperLink may know more: a run that was stopped cannot say so."""
log = logging.getLogger(__name__)


class View:
    """One live page's contents.

    Args:
        actions: what can be done from the page.
        path: the run's folder; None: the SuperLink's latest run, until another one is chosen.
        superlink: None: only the folder is read.
        lists_runs: whether the SuperLink's runs are shown; not those of one that has this run alone.
        root: the SuperLink's working folder, where runs' relative folders start; None: it is not known here.
        runs_as: a folder of runs, and what it is called outside of this container; ``("", "")``: the same.
        members: those of the SuperLink, where this page changes them.

    Attributes:
        superlink: as above; `fedappeal local` has one as soon as its run has begun.
    """

    def __init__(
        self,
        actions: ForeignRun,
        path: Path | None = None,
        superlink: RemoteSuperLink | None = None,
        lists_runs: bool = True,
        root: Path | None = None,
        runs_as: tuple[str, str] = ("", ""),
        clock: Callable[[], float] = time.monotonic,
        members: Members | None = None,
    ) -> None:
        self.superlink = superlink
        self._members = members
        self._last: dict[int, str] | None = None if members is None else {}
        self._invitations: dict[str, Any] | None = None
        self._actions, self._lists_runs, self._root, self._clock = actions, lists_runs, root, clock
        self._runs_as = runs_as
        self._chosen = "" if path is None else None
        """The id of the run that is shown; empty: the latest one's; None: it is the given folder's."""
        self._run = LiveRun(path) if path is not None else None
        self._connected = RunClients()
        """The SuperLink's nodes, where there is no run."""
        self._runs: list[ListedRun] = []
        self._problem, self._warning = "", ""
        self._certificate = ServedCertificate(superlink)
        self._next_question = 0.0
        self._starting, self._looking = threading.Lock(), threading.RLock()
        self._shown: dict[str, Any] = {}
        self._failed = True
        """Whether the last look, if there was one, did not come to its end."""
        self._look = self._anew = 0
        """The number of the last look, and of the last one at which all was read anew: of another run, say."""
        self._changed: dict[str, int] = {}
        """The number of the look at which a section changed last, by its name."""
        self._next_look, self._asked_at, self._ran_at = 0.0, -_OPEN, -STAYS

    @property
    def path(self) -> Path | None:
        """The folder of the run that is shown."""
        return self._run.path if self._run else None

    @property
    def nodes(self) -> Sequence[Node] | None:
        """The SuperLink's nodes; None if it is not asked, or does not answer."""
        return self._connected.nodes

    @property
    def over(self) -> bool:
        """Whether the run that is shown has ended, as far as was last read."""
        return self._state not in ("", WAITING, RUNNING)

    @property
    def _state(self) -> str:
        run = self._shown.get("run")
        return str(run["state"]) if run else ""

    def news(self, seen: int = 0, after: int = 0) -> dict[str, Any]:
        """Return what an open page does not show yet; look first, where it is time to.

        Args:
            seen: what the page's last answer said; one that was not given counts as none.
            after: the latest round that it shows.

        Returns:
            Sections that changed; ``rounds``; ``anew``: whether all is there; ``seen``, for its next question; and
            ``failed``, where the last look failed: what is known is older.
        """
        with self._looking:
            self._asked_at = self._clock()
            if self._asked_at >= self._next_look:
                try:
                    self.refresh()
                except Exception as error:  # the page has what was read before
                    log.warning("page: %s: %s", type(error).__name__, error)
            anew = not self._anew <= seen <= self._look
            rounds = [line for line in self._shown.get("rounds", ()) if anew or line["round"] > after]
            news = {name: value for name, value in self._shown.items() if anew or self._changed.get(name, 0) > seen}
            failed = {"failed": True} if self._failed else {}
            return {**news, "rounds": rounds, "anew": anew, "seen": self._look, **failed}

    def refresh(self, asks: bool = True) -> None:
        """Read what is new, and ask the SuperLink unless told not to; after a look that failed, all counts as new."""
        with self._looking:
            before, state, began = self._run, self._state, time.thread_time()
            failed, self._failed = self._failed, True
            try:
                if asks:
                    self._ask()
                self._show_chosen()
                anew = self._run.read() if self._run else False
                sections, self._look = self._sections(), self._look + 1
                changed = (name for name, value in sections.items() if self._shown.get(name) != value)
                self._changed |= dict.fromkeys(changed, self._look)
                if anew or failed or self._run is not before:
                    self._anew = self._look
                self._shown, self._failed = sections, False
                if state and self._state != state:  # what the SuperLink said before may be over, too
                    self._next_question = 0.0
            finally:
                now = self._clock()
                self._ran_at = self._ran_at if self.over else now
                self._next_look = now + min(LOOKED_WITHIN, max(LOOKED_EVERY, (time.thread_time() - began) / SHARE))

    def refresh_at_end(self) -> None:
        """Read what is new without a question to the SuperLink, nor a long wait for a request that asks it."""
        if self._looking.acquire(timeout=_PATIENCE):
            try:
                self.refresh(asks=False)
            finally:
                self._looking.release()

    def stays(self) -> float:
        """Return the seconds for which a page stays whose run, or command, has ended: an open one shows how."""
        now = self._clock()
        return max(0.0, self._ran_at + STAYS - now) if self.over and now < self._asked_at + _OPEN else 0.0

    def stop(self, run_id: str) -> str:
        """Stop a run; return a confirmation.

        Args:
            run_id: as the SuperLink has it; empty: the run that is shown.

        Raises:
            NotDone: there is no such run, or the SuperLink refuses.
        """
        run = self._listed_run(run_id) if run_id else self._shown_run()
        try:
            return self._actions.stop(run.run_id if run else 0)
        finally:
            self._next_question = 0.0

    def resume(self, rounds: int = 0) -> str:
        """Continue the shown run; return a confirmation.

        Raises as `stop`.

        Args:
            rounds: its new total of rounds; 0: as it is.
        """
        offered = self._shown.get("actions", {})
        if self._run is None or not offered.get("extend" if rounds else "resume"):
            raise NotDone("there is no run here that can be continued from this page")
        with self._one_start():
            done = self._actions.resume(self._run.path, rounds)
            self._shown = {**self._shown, "actions": {**offered, "resume": False, "extend": False}}  # no second time
        return done

    def start(self, file: str) -> str:
        """Start a run from an offered settings file; return a confirmation.

        Raises as `stop`.
        """
        with self._one_start():
            done = self._actions.start(file)
            self._chosen = ""
        return done

    def change_members(self, change: str, body: Mapping[str, Any]) -> str:
        """Make one of `CHANGES` that a body describes; return what it says.

        Raises as `stop`, and ConfigError.
        """
        if self._members is None:
            raise NotDone("members are not changed from this page: `fedappeal federation` does it")
        try:
            return CHANGES[change](self._members, body)
        except ControlError as error:
            raise NotDone(str(error)) from None
        finally:
            self._next_question = 0.0

    def choose(self, run_id: str) -> str:
        """Show a run of the SuperLink on all open pages; empty for its latest.

        Raises as `stop`.
        """
        self._chosen = str(self._listed_run(run_id).run_id) if run_id else ""
        return f"run {run_id} is shown" if run_id else "the latest run is shown"

    def latest_folder(self) -> Path | None:
        """Return the folder of the SuperLink's latest run; None if not seen here.

        The SuperLink is asked anew.
        """
        if self.superlink is None:
            return self.path
        with suppress(ControlError):  # while it does not answer, its latest run is the one that it named last
            self._runs = self.superlink.runs()
        return self._folder(self._runs[-1]) if self._runs else None

    def folder_of(self, run_id: str) -> Path:
        """Return the folder of a SuperLink's run; empty for the shown one.

        Raises as `stop`.
        """
        path = self._folder(self._listed_run(run_id)) if run_id else self.path
        if path is None:
            raise NotDone("this machine does not see the run's folder")
        return path

    @contextmanager
    def _one_start(self) -> Iterator[None]:
        """Allow one start or resume at a time; raise NotDone meanwhile.

        The SuperLink is asked next.
        """
        if not self._starting.acquire(blocking=False):
            raise NotDone("a run is being started: wait until the page says what came of it")
        try:
            yield
        finally:
            self._next_question = 0.0
            self._starting.release()

    def _ask(self) -> None:
        """Ask the SuperLink for its nodes and runs, where it is time to."""
        superlink, began = self.superlink, self._clock()
        if superlink is None or began < self._next_question:
            return
        self._next_question = began + ASKED_EVERY  # also where this fails
        try:
            nodes = superlink.nodes()
            if self._lists_runs:
                self._runs = superlink.runs()
            self._problem = ""
        except ControlError as error:
            nodes, self._problem = None, printable(error)
        if self._members is not None:
            self._invitations = self._members.section()
            seen = ((run, self._folder(run)) for run in reversed(self._runs))
            others = [(run, path) for run, path in seen if path is not None and path != self.path]
            if nodes is not None:
                self._last = self._members.last_decisions(others, nodes, lambda run: run.status in _UNDER_WAY)
        self._certificate.superlink = superlink
        dates = self._certificate.validity()
        self._warning = dates.warning(f"the certificate of {superlink.address}") if dates else ""
        now = self._clock()
        # The whole time counts, for most of it is the SuperLink's; on a busy machine it is longer than the work.
        self._next_question = now + min(ASKED_WITHIN, max(ASKED_EVERY, (now - began) / SHARE))
        self._connected.nodes = nodes
        if self._run is not None:
            self._run.clients.nodes = nodes

    def _show_chosen(self) -> None:
        """Show the run that was chosen, where that is another one."""
        if self._chosen is None or (run := self._shown_run()) is None:
            return
        path = self._folder(run)
        if path != self.path:
            self._run = LiveRun(path) if path is not None else None
            if self._run is not None:
                self._run.clients.nodes = self._connected.nodes

    def _folder(self, run: ListedRun) -> Path | None:
        """Return a run's folder; None if this machine does not see it yet."""
        path = Path(run.folder)
        if run.folder and self._root is not None:
            path = self._root / path
        try:
            return path if run.folder and path.is_absolute() and (path / CONFIG).is_file() else None
        except OSError:  # too long a name, or a folder of another user
            return None

    def _outside(self, folder: str) -> str:
        """Return what a folder is called outside of this container."""
        inside, outside = self._runs_as
        within = inside and (folder == inside or folder.startswith(f"{inside}/"))
        return f"{outside}{folder.removeprefix(inside)}" if within else folder

    def _listed_run(self, run_id: str) -> ListedRun:
        for run in self._runs:
            if str(run.run_id) == run_id:
                return run
        raise NotDone("the SuperLink knows no such run")

    def _shown_run(self) -> ListedRun | None:
        """Return the shown run as the SuperLink knows it; of a folder the latest one."""
        path = self.path
        if self._chosen is None:
            return next((run for run in reversed(self._runs) if path and self._folder(run) == path), None)
        latest = self._runs[-1] if self._runs else None
        chosen = next((run for run in self._runs if str(run.run_id) == self._chosen), latest)
        same = (run for run in reversed(self._runs) if chosen and run.folder and run.folder == chosen.folder)
        return next(same, chosen)

    def _sections(self) -> dict[str, Any]:
        seen = self._run if self._run and (self._run.path / CONFIG).is_file() else None
        run, listed = seen.section() if seen else None, self._shown_run()
        if run:
            run["folder"] = self._outside(run["folder"])
        if run and listed and listed.status in ("failed", STOPPED) and run["state"] in _UNSAID:
            run |= {"state": listed.status, "left": None, "awaited": ""}
        clients = seen.clients if seen else self._connected
        state, runtime = (run["state"], run["runtime"]) if run else ("", "")
        if state and listed and listed.status in _UNDER_WAY:
            state = RUNNING  # it continues: its process has not written to the folder yet
        elif seen and state not in (WAITING, RUNNING) and RunFolder.is_held(seen.path):
            state = ""  # its process is ending, and has the folder: neither stopped nor continued
        superlink = None
        if self.superlink is not None:
            superlink = {
                "address": self.superlink.address,
                "problem": self._problem,
                "warning": self._warning,
                "runs": [
                    {
                        **item.as_dict(),
                        "folder": self._outside(item.folder),
                        "under-way": item.status in _UNDER_WAY,
                        "seen": self._folder(item) is not None,
                    }
                    for item in self._runs[: -MOST_RUNS - 1 : -1]
                ],
                "shown": str(listed.run_id) if listed else "",
                "latest": self._chosen == "",
            }
        return {
            "run": run,
            "rounds": self._run.rounds if self._run else [],
            "clients": clients.section(self._last),
            "members": self._invitations,
            "refused": clients.refused(),
            "failures": seen.failures() if seen else [],
            "superlink": superlink,
            "actions": self._actions.offers(state, runtime, self.path),
            "states": STATES,
            "looks": LOOK_FIELDS,
        }
