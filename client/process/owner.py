"""The owner's commands on a client's state: pause, reset, leave runs."""

from contextlib import suppress
from pathlib import Path

from client.limits.answer_book import AnswerBook
from client.state.activity import Activity
from client.state.memory import DEPARTURE, RunMemory
from client.state.store import DiskStore, is_precious
from fedappeal.core.local_rule import StoredRecord
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError
from fedappeal.system.locks import changing
from fedappeal.system.wording import plural

PAUSED = "paused"
"""A file of this name in the state folder makes the client answer nothing."""

RETURNED = "returned"
"""A file of this name makes a running client come online anew, so that the runs it had left ask it again."""

_LONGEST = 500
_SHORT = 80

KEPT = ("identity", "node", "noise-key")
"""Records that `reset` never forgets: two noises on one update, from two keys, could be averaged away."""


def store_of(folder: Path) -> DiskStore:
    """Return the records of a client; ConfigError where none are kept there."""
    if not folder.is_dir():
        raise ConfigError(f"state-dir = '{folder}' is not allowed: no client has kept state there")
    return DiskStore(folder)


def client_name(store: DiskStore) -> str:
    """Return a client's id; where there is none, or it cannot be read, a line that says so."""
    try:
        identity = store.look("identity")
        return str(identity.values["client-id"]) if identity else "no id yet"
    except (ConfigError, KeyError):
        return f"an id that cannot be read: '{store.path('identity')}' and its copy are damaged"


def key_name(key: str) -> str:
    """Return the name of a client's key, which the operator's list shows, too: its public half's, else its file's."""
    path = Path(key)
    with suppress(OSError, ValueError, IndexError):
        return printable(path.with_suffix(".pub").read_text("utf-8")[:_LONGEST].split(maxsplit=2)[2].strip(), _SHORT)
    return printable(path.stem, _SHORT)


def departures(store: DiskStore) -> frozenset[str]:
    """Return the run-keys of runs that the owner has left."""
    return frozenset(store.keys(DEPARTURE))


def pause(folder: Path) -> str:
    """Make the client rest; return what was done, in one line."""
    store_of(folder)
    (folder / PAUSED).touch(mode=0o600)
    return "paused: the client stays connected and answers nothing until `fedappeal client resume`"


def resume(folder: Path) -> str:
    """End a pause, and nothing else; return what was done, in one line."""
    store_of(folder)
    (folder / PAUSED).unlink(missing_ok=True)
    return "not paused"


def leave(folder: Path, run_key: str | None) -> str:
    """Leave a run for good; return what was done, in one line.

    A running client says so when it is next asked to train, and the server asks it no more.

    Args:
        folder: the client's state folder.
        run_key: of the run; None: all runs that the client takes part in.

    Raises:
        ConfigError: the client takes part in no such run.
    """
    store = store_of(folder)
    with changing(folder):
        runs = store.keys("run-")
        if run_key is not None and run_key not in runs:
            names = ", ".join(runs) or "none"
            raise ConfigError(f"run = '{run_key}' is not allowed: a run that this client takes part in ({names})")
        left_runs = [key for key in runs if run_key in (None, key)]
        for key in left_runs:  # one that is over, too: its server may continue it
            store.write(DEPARTURE + key, StoredRecord({"by": "owner"}))
    over = {key for key, run in Activity(folder).runs().items() if run.ended}
    going = [key for key in left_runs if key == run_key or key not in over]
    names = ", ".join(going) or "none that goes on"
    return f"{plural(len(going), 'run')} left for good ({names}); `fedappeal client reset` takes that back"


def reset(folder: Path, forget: bool = False) -> str:
    """End a pause and forget having left; return what was done, in one line.

    Args:
        folder: the client's state folder.
        forget: forget requirements, solo models, control variates, the preferred models and what it did in each run
            too. The client-id and the key of the privacy noise stay: two noises on one update, from two keys, could
            be averaged away.
    """
    store = store_of(folder)
    with changing(folder):
        if forget:
            AnswerBook(folder).forget()  # first: where it refuses, nothing has been done
        (folder / PAUSED).unlink(missing_ok=True)
        runs = damaged = 0
        departed = departures(store)
        for run_key in departed:
            store.delete(DEPARTURE + run_key)
        for name in store.names():
            has_left = _left(store, name, departed) if is_precious(name) else False
            runs += has_left is not False and name.startswith("run-")
            if forget and name not in KEPT:
                store.delete(name)
            elif has_left is None:
                store.put_aside(name)
                damaged += 1
            elif has_left:
                RunMemory(store, name.removeprefix("run-")).leave(0)
        if forget:
            for name in store.damaged_names():
                if name not in KEPT:
                    store.delete(name)
            Activity(folder).forget()
        if runs:
            (folder / RETURNED).touch(mode=0o600)
    aside = f"; {plural(damaged, 'damaged record')} put aside" if damaged else ""
    forgotten = "; requirements and models are forgotten, the client-id and the noise key stay" if forget else ""
    again = "; a running run asks again within two rounds (a stock SuperNode: once restarted)" if runs else ""
    joined = f"{plural(runs, 'run')} can be joined again after having been left"
    return f"back: not paused, {joined}{again}{aside}{forgotten}"


def _left(store: DiskStore, name: str, departed: frozenset[str]) -> bool | None:
    """Return whether the client has left a run for good.

    None where its record is damaged.
    """
    try:
        record = store.look(name)
        if record is None or not name.startswith("run-"):
            return False
        return bool(record.values["left-round"]) or name.removeprefix("run-") in departed
    except (ConfigError, KeyError):
        return None
