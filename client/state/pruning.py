"""Pruning of a client's state: all records of the latest runs stay, of earlier ones that it left.

A run leaves a record of itself, its requirement with the model trained alone, and what its rule remembers (control
variates, a personal part). The run that is served is never touched, nor is what belongs to no run.
"""

from collections.abc import Iterable, Sequence

from client.limits.answer_book import AnswerBook
from client.limits.limits import MEGABYTE, LimitReached
from client.state import preferred
from client.state.store import DiskStore
from fedappeal.core.local_rule import Record

KEPT_RUNS = 20
"""Latest runs of which everything is kept."""
KEPT_LEFT = 256
"""Latest runs of which it is kept that the client has left them for good."""
_RUN, _REQUIREMENT = "run-", "requirement-"
_OF_A_RUN = ("", "-before")
"""Endings, after the run-key, of the names of a run's records."""
_NEVER = frozenset({"identity", "node", "noise-key", preferred.LATEST})


def prune(store: DiskStore, book: AnswerBook, served: str, max_state: float, needed: int = 0) -> None:
    """Forget old runs: those beyond `KEPT_RUNS`, and further ones while the state is too large.

    Args:
        store: the client's state.
        book: says in which order the runs were asked for.
        served: the run-key of the run that is served.
        max_state: MB that the folder may hold; 0: no limit.
        needed: bytes that the run that is served still needs.

    Raises:
        LimitReached: if there is no room for the run.
    """
    runs = _oldest_first(store, book, served)
    left = {key for key in runs if store.readable_values(_RUN + key).get("left-round")}
    past = runs[:-1]
    for key in past[: max(0, len(runs) - KEPT_RUNS)]:
        _forget(store, key, runs, keep_mark=key in left)
    for key in [key for key in past if key in left][:-KEPT_LEFT]:
        store.delete(_RUN + key)
    _forget_requirements(store)
    if not max_state:
        return
    allowed = max_state * MEGABYTE - needed
    for key in past:
        if size_of(store) <= allowed:
            return
        _forget(store, key, runs, keep_mark=key in left)
        store.delete(preferred.record_name(key))
        _forget_requirements(store)
    if size_of(store) > allowed:
        raise LimitReached(f"this run needs more room than this client's max-state = {max_state:g} MB leaves")


def size_of(store: DiskStore) -> int:
    """Return the bytes of all records."""
    return sum(file.stat().st_size for file in store.folder.rglob("*.safetensors"))


def _oldest_first(store: DiskStore, book: AnswerBook, served: str) -> list[str]:
    """Return the run-keys of all runs that have a record, the one that is served last."""
    asked = {key: place for place, key in enumerate(book.runs())}
    names = [name for name in store.names() if name.startswith(_RUN)]
    keys = [name.removeprefix(_RUN) for name in names if name != _RUN + served]
    return [*sorted(keys, key=lambda key: (asked.get(key, -1), store.written(_RUN + key))), served]


def _forget(store: DiskStore, key: str, runs: Sequence[str], *, keep_mark: bool) -> None:
    """Forget the records of a run; not that it was left, where that mark is kept, nor the model that it preferred."""
    for name in store.names():
        if name.startswith(f"{preferred.LATEST}-") or _run_of(name, runs) != key:
            continue
        if name == _RUN + key and keep_mark:
            if (values := store.readable_values(name)).get("requirement"):
                store.write(name, Record({**values, "requirement": ""}))
        else:
            store.delete(name)


def _run_of(name: str, runs: Iterable[str]) -> str | None:
    """Return the run whose record has this name, None where it belongs to none; of several the longest key."""
    if name in _NEVER or name.startswith(_REQUIREMENT):
        return None
    run_keys = [key for key in runs if any(name.endswith(f"-{key}{after}") for after in _OF_A_RUN)]
    return max(run_keys, key=len, default=None)


def _forget_requirements(store: DiskStore) -> None:
    """Forget requirements that no run refers to."""
    names = store.names()
    wanted = {store.readable_values(name).get("requirement", "") for name in names if name.startswith(_RUN)}
    for name in names:
        if name.startswith(_REQUIREMENT) and name not in wanted:
            store.delete(name)
