"""What is forgotten of past runs, and what never is."""

from pathlib import Path

import numpy as np
import pytest

from client.limits import guard as pruning
from client.limits.answer_book import AnswerBook
from client.limits.guard import prune, size_of
from client.limits.limits import LimitReached, Limits
from client.state.store import DiskStore
from fedappeal.core.local_rule import StoredRecord

KEPT = {"identity", "node", "noise-key", "preferred"}


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    made = DiskStore(tmp_path)
    for name in KEPT:
        made.write(name, StoredRecord({"key": "1"}))
    return made


def serve(store: DiskStore, key: str, left: int = 0, size: int = 0) -> None:
    """Keep what a run leaves."""
    AnswerBook(store.folder).begin(key, "model", Limits.off())
    store.write(f"requirement-of{key}", StoredRecord({"rho": 1.0}, {"w": np.zeros(size)}))
    store.write(f"run-{key}", StoredRecord({"requirement": f"requirement-of{key}", "left-round": left}))
    for name in (f"control-{key}", f"personal-{key}", f"personal-{key}-before", f"preferred-{key}"):
        store.write(name, StoredRecord({"round": 1}))


def test_the_runs_asked_for_longest_ago_are_forgotten_first(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "KEPT_RUNS", 2)
    for key in ("c", "b", "a"):
        serve(store, key)
    AnswerBook(store.folder).begin("c", "model", Limits.off())  # it comes again
    prune(store, AnswerBook(store.folder), "c", 0.0)
    left_over = {name for name in store.names() if "b" in name.split("-")[1:] or "ofb" in name}
    assert left_over == {"preferred-b"}  # the owner's to keep
    assert {"run-a", "run-c", "requirement-ofa", "personal-c-before", "control-a"} <= set(store.names())
    assert set(store.names()) >= KEPT


def test_a_key_that_ends_as_another_forgets_nothing_of_it(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "KEPT_RUNS", 2)
    for key in ("key", "x-key", "y"):
        serve(store, key)
    prune(store, AnswerBook(store.folder), "y", 0.0)
    assert {"run-x-key", "control-x-key", "personal-x-key-before"} <= set(store.names())
    assert "control-key" not in store.names()
    assert set(store.names()) >= KEPT


def test_having_left_is_kept_without_what_belongs_to_it(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "KEPT_RUNS", 1)
    monkeypatch.setattr(pruning, "KEPT_LEFT", 2)
    for number in range(4):
        serve(store, f"left{number}", left=3)
    serve(store, "now")
    prune(store, AnswerBook(store.folder), "now", 0.0)
    runs = [name for name in store.names() if name.startswith("run-")]
    assert runs == ["run-left2", "run-left3", "run-now"]
    assert store.values("run-left3") == {"requirement": "", "left-round": 3}
    assert [name for name in store.names() if name.startswith("requirement-")] == ["requirement-ofnow"]


def test_a_full_state_forgets_more_but_not_the_run_that_is_served(store: DiskStore) -> None:
    for key in ("a", "b", "c"):
        serve(store, key, size=100_000)
    before = size_of(store)
    assert before > 2_400_000
    prune(store, AnswerBook(store.folder), "c", 2.0)
    assert "run-a" not in store.names()
    assert "preferred-a" not in store.names()
    assert {"run-b", "run-c"} <= set(store.names())
    prune(store, AnswerBook(store.folder), "c", 2.0, needed=1_000_000)
    assert "run-b" not in store.names()
    with pytest.raises(LimitReached, match=r"more room than this client's max-state = 0\.5 MB leaves"):
        prune(store, AnswerBook(store.folder), "c", 0.5)
    assert {"run-c", "requirement-ofc", *KEPT} <= set(store.names())


def test_a_damaged_record_is_left_to_its_reader(store: DiskStore) -> None:
    serve(store, "a")
    store.path("run-b").write_bytes(b"nonsense")
    prune(store, AnswerBook(store.folder), "a", 0.0)
    assert "run-a" in store.names()


@pytest.mark.parametrize("lost", [True, False])
def test_what_the_copy_of_a_damaged_record_says_counts(
    lost: bool, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was left stays left, and a run keeps its requirement."""
    monkeypatch.setattr(pruning, "KEPT_RUNS", 2)
    for key, left in (("left", 3), ("late", 0), ("now", 0)):
        serve(store, key, left)
    for name in ("run-left", "run-late"):
        if lost:
            store.path(name).unlink()
        else:
            store.path(name).write_bytes(b"nonsense")
    prune(store, AnswerBook(store.folder), "now", 0.0)
    assert store.values("run-left") == {"requirement": "", "left-round": 3}
    assert {"run-late", "requirement-oflate"} <= set(store.names())
    assert "requirement-ofleft" not in store.names()
