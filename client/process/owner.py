"""What an owner can do with a client's state: describe, pause, reset."""

from pathlib import Path

from client.activity import Activity
from client.answers import AnswerBook
from client.preferred import describe_preferred
from client.requirement import METRIC
from client.state import DiskStore, Record
from fedappeal.plural import counted
from fedappeal.protocol.config import ConfigError

PAUSED = "paused"
"""A file of this name in the state folder makes the client answer nothing."""

KEPT = ("identity", "node", "noise-key")
"""Records that `reset` never forgets: two noises on one update, from two keys, could be averaged away."""


def _store(folder: Path) -> DiskStore:
    if not folder.is_dir():
        raise ConfigError(f"state-dir = '{folder}' is not allowed: no client has kept state there")
    return DiskStore(folder)


def describe(folder: Path) -> list[str]:
    """Return what a client remembers, a line a thing.

    Raises:
        ConfigError: if there is no state in the folder.
    """
    store = _store(folder)
    identity = store.read("identity")
    lines = [f"client     {identity.values['client-id'] if identity else 'no id yet'} ({folder})"]
    lines.append(
        "paused     yes: `fedappeal client reset` ends it" if (folder / PAUSED).exists() else "paused     no"
    )
    activity = Activity(folder).runs()
    for name in store.names():
        if (record := store.read(name)) is None:
            continue
        if name.startswith("requirement-"):
            kind = "a model of its own" if record.arrays else "a fixed number"
            score = float(record.values["solo-score"])
            own = f", alone {score:.4f} on the test data" if record.arrays else ""
            rho = float(record.values["rho"])
            by_metric = record.values["of"] == METRIC
            wanted = f"the task's metric at {rho:.4f} or better" if by_metric else f"training loss below {rho:.4f}"
            lines.append(f"requires   {wanted} (from {kind}{own})")
        elif name.startswith("run-"):
            left = int(record.values["left-round"])
            state = f"left for good in round {left}" if left else "takes part"
            lines.append(f"run        {name.removeprefix('run-') or '(no key)'}: {state}")
            if (did := activity.pop(name.removeprefix("run-"), None)) is not None:
                lines += [f"{'':11}{line}" for line in did.lines()]
    lines += describe_preferred(store)
    return lines


def pause(folder: Path) -> str:
    """Make the client rest; return what was done, in one line."""
    _store(folder)
    (folder / PAUSED).touch()
    return "paused: the client stays connected and answers nothing until `fedappeal client reset`"


def reset(folder: Path, forget: bool = False) -> str:
    """End a pause and forget having left; return what was done, in one line.

    Args:
        folder: the client's state folder.
        forget: forget requirements, solo models, control variates, the preferred models and what it did in each run
            too. The client-id and the key of the privacy noise stay: two noises on one update, from two keys, could
            be averaged away.
    """
    store = _store(folder)
    (folder / PAUSED).unlink(missing_ok=True)
    back = 0
    for name in store.names():
        record = store.read(name)
        if name.startswith("run-") and record is not None and record.values["left-round"]:
            store.write(name, Record({**record.values, "left-round": 0}))
            back += 1
        if forget and name not in KEPT:
            store.delete(name)
    if forget:
        Activity(folder).forget()
        AnswerBook(folder).forget()
    forgotten = "; requirements and models are forgotten, the client-id and the noise key stay" if forget else ""
    return f"back: not paused, {counted(back, 'run')} can be joined again after having been left{forgotten}"
