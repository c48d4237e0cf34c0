"""How a SuperLink that comes back on its database continues the runs that were under way when it ended."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedappeal.core.plugins import allow_options
from fedappeal.federation.remote import NotDone, RemoteSuperLink
from fedappeal.flower.control import ControlError, ListedRun
from fedappeal.flower.superlink.database_file import unfinished_runs
from fedappeal.flower.superlink.superlink_process import Ports
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import RESTARTED
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file

_log = logging.getLogger("flwr")  # the one that a SuperLink's process shows
_LOOK = 0.5
_PATIENCE = 60.0
"""Seconds in which the SuperLink has to answer, and a run's earlier server process to end."""


def to_continue(database: Path) -> Path:
    """Return the file of the runs that are to be continued."""
    return database.with_name(f"{database.name}.continue")


class UnfinishedRuns:
    """The runs that are to be continued, kept beside the database until each is.

    Args:
        database: the database's file; the SuperLink has it alone, and has not begun.

    Attributes:
        ids: of the runs.
        folder: of the SuperLink's own runs, beside the database.

    Raises:
        ConfigError: the database or the file beside it cannot be read.
    """

    def __init__(self, database: Path) -> None:
        self._file = to_continue(database)
        self.folder = database.absolute().parent / "runs"
        before = self._file.read_text(encoding="utf-8").split() if self._file.exists() else []
        if not all(word.isascii() and word.isdigit() for word in before):
            raise ConfigError(f"file '{self._file}' is not allowed: ids of runs; delete it to continue none of them")
        self.ids = list(dict.fromkeys([*map(int, before), *unfinished_runs(database)]))
        self._keep()

    def settled(self, run_id: int) -> None:
        """Forget a run, which continues or never will."""
        self.ids.remove(run_id)
        self._keep()

    def _keep(self) -> None:
        if self.ids:
            replace_file(self._file, "".join(f"{run_id}\n" for run_id in self.ids).encode())
        else:
            self._file.unlink(missing_ok=True)


def continue_unfinished(ports: Ports, allow: Sequence[str] = ()) -> None:
    """Continue the runs of a SuperLink's database that were under way, as soon as it answers.

    Args:
        ports: of the SuperLink, which begins in this process when this has returned.
        allow: packages whose code the runs may name.

    Raises:
        ConfigError: it has no database, or one that cannot be read.
    """
    if ports.database is None:
        raise ConfigError("resume is not allowed without a database: give --database FILE, which keeps the runs")
    unfinished = UnfinishedRuns(ports.database)
    superlink = RemoteSuperLink.checked(ports.control, ports.ca)
    if unfinished.ids:
        threading.Thread(
            target=_continue, args=(superlink, unfinished, allow), name="continuing", daemon=True
        ).start()


def _continue(superlink: RemoteSuperLink, unfinished: UnfinishedRuns, allow: Sequence[str]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            runs = _runs_here(superlink, unfinished.folder)
            break
        except ControlError as error:
            if time.monotonic() > deadline:
                _log.error("the runs that were under way are not continued: %s", error)
                return
            time.sleep(_LOOK)
    for run in (run for run in runs if run.run_id in unfinished.ids):
        try:
            _await_its_process(run)
            runs_now = _runs_here(superlink, unfinished.folder)  # an operator may have stopped it
            if _goes_on(run, runs_now):
                began = f"run {run.run_id} was under way when the SuperLink ended"
                later = _continuation(superlink, run, unfinished.folder, allow)
                _log.warning("%s: it continues as run %s", began, later)
        except (ControlError, ConfigError, NotDone, OSError) as error:  # OSError: it cannot write to the folder
            _log.error("run %s was under way, and does not continue: %s", run.run_id, error)
        if run.folder:
            with suppress(ControlError):
                superlink.stop_run(run.run_id)  # Flower would wait for its process, and clients would answer it
        unfinished.settled(run.run_id)


def _runs_here(superlink: RemoteSuperLink, own: Path) -> list[ListedRun]:
    """Return a SuperLink's runs, each with the copy of its folder where one was restored among its own."""
    return [replace(run, folder=_folder_here(run.folder, own)) for run in superlink.runs()]


def _folder_here(recorded: str, own: Path) -> str:
    """Return the folder of a run that was recorded elsewhere, before both were restored from a backup."""
    _, inside, name = recorded.rpartition("/runs/")
    copy, original = own / name, Path(recorded)
    if not (inside and name) or copy == original or not copy.exists():
        return recorded
    with suppress(ConfigError, OSError):  # what cannot be read is no other run
        if original.exists() and RunFolder.open(original).run_key != RunFolder.open(copy).run_key:
            return recorded
    return str(copy)


def _await_its_process(run: ListedRun) -> None:
    """Wait for the end of a run's earlier server process, which ends by itself."""
    deadline = time.monotonic() + _PATIENCE
    while run.folder and RunFolder.is_held(Path(run.folder)) and time.monotonic() < deadline:
        time.sleep(_LOOK)


def _goes_on(run: ListedRun, runs: Sequence[ListedRun]) -> bool:
    """Whether a run is to continue, among all that the SuperLink has now."""
    status = next((other.status for other in runs if other.run_id == run.run_id), "stopped")
    later = any(other.folder == run.folder and other.started > run.started for other in runs)
    return status not in ("completed", "stopped") and not later


def _continuation(superlink: RemoteSuperLink, run: ListedRun, own: Path, allow: Sequence[str]) -> str:
    """Return the id of the run that continues another one.

    Raises:
        ConfigError, NotDone, OSError: there is none.
    """
    if not run.folder:
        raise NotDone("it is not one of fedappeal's")
    if not Path(run.folder).exists():
        raise NotDone(
            f"there is no folder '{run.folder}', nor one of that name in '{own}': `fedappeal resume` its copy, or "
            "submit it again"
        )
    folder = RunFolder.open(Path(run.folder).absolute())
    with folder.alone():
        for line in folder.mend():
            _log.warning(line)
        folder.event(RESTARTED, run=run.run_id)
    return superlink.submit_detached("resume", str(folder.path), *allow_options(allow))
