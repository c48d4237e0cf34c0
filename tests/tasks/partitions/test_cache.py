"""Partitions kept on disk: the same as drawn ones, whatever became of the file and whoever else writes it."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fedappeal.system.files
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.system.files import write_safetensors
from fedappeal.system.locks import CHANGES
from fedappeal.tasks import labelled, load_task
from fedappeal.tasks.datasets.digits import Digits
from fedappeal.tasks.examples import Rows
from fedappeal.tasks.partitions.assign import assign, kept_rows

ROOT = Path(__file__).parents[3]
LABELS = np.arange(20, dtype=np.int64) % 4
DRAWN = [np.array([0, 3, 5]), np.array([1, 2]), np.array([4, 6, 7, 8])]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedappeal"


def drawn() -> list[Rows]:
    return [rows.copy() for rows in DRAWN]


def never() -> list[Rows]:
    raise AssertionError("drawn again")


def same(found: list[Rows], expected: list[Rows]) -> bool:
    return len(found) == len(expected) and all(
        a.dtype == np.int64 and np.array_equal(a, b) for a, b in zip(found, expected, strict=True)
    )


def kept_files(cache: Path) -> list[Path]:
    """Return the files that hold partitions."""
    return [file for file in cache.iterdir() if file.name != CHANGES]


def test_a_kept_partition_is_the_one_that_was_drawn(cache: Path) -> None:
    assert same(kept_rows("a", LABELS, drawn), DRAWN)
    assert same(kept_rows("a", LABELS, never), DRAWN)
    (file,) = kept_files(cache)
    assert file.suffix == ".safetensors"


def test_a_client_without_rows_is_kept_as_such() -> None:
    some = [np.array([1]), np.empty(0, np.int64), np.array([0, 2]), np.empty(0, np.int64)]
    kept_rows("a", LABELS, lambda: some)
    assert same(kept_rows("a", LABELS, never), some)


def test_another_task_and_other_labels_have_a_partition_of_their_own() -> None:
    kept_rows("a", LABELS, drawn)
    other = [np.array([9])]
    for fingerprint, labels in (("b", LABELS), ("a", LABELS[::-1].copy()), ("a", LABELS[:-1])):
        assert same(kept_rows(fingerprint, labels, lambda: other), other)
    assert same(kept_rows("a", LABELS, never), DRAWN)


@pytest.mark.parametrize("how", ["iid", "dirichlet", "shards", "clusters"])
def test_a_tasks_cached_partition_equals_the_computed_one(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = TaskSettings.model_validate({"clients": 5, "unseen_clients": 2, "partition": how, "seed": 3})
    _, labels = Digits(chosen).read()
    computed = assign(chosen, labels, 10)
    first = load_task(chosen)
    prints = [first.load(k).fingerprint for k in range(7)]
    monkeypatch.setattr(labelled.assign, "assign", lambda *arguments: never())
    again = load_task(chosen)
    assert same(again.rows, computed)  # type: ignore[attr-defined]
    assert [again.load(k).fingerprint for k in range(7)] == prints


def kept_file(cache: Path) -> Path:
    kept_rows("a", LABELS, drawn)
    (file,) = kept_files(cache)
    return file


def test_a_file_with_any_byte_changed_is_drawn_again_and_replaced(cache: Path) -> None:
    file = kept_file(cache)
    whole = file.read_bytes()
    draws = 0

    def counted() -> list[Rows]:
        nonlocal draws
        draws += 1
        return drawn()

    for place in range(len(whole)):
        for flip in (0x01, 0x0F, 0xFF):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            assert same(kept_rows("a", LABELS, counted), DRAWN), f"byte {place}"
    # Some bytes say nothing (the header's padding, names of other metadata): most do.
    assert draws > 2.5 * len(whole)
    assert same(kept_rows("a", LABELS, never), DRAWN)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 50, -1])
def test_a_file_cut_short_is_drawn_again_and_replaced(cache: Path, kept: int) -> None:
    file = kept_file(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])
    assert same(kept_rows("a", LABELS, drawn), DRAWN)
    assert len(file.read_bytes()) == len(whole)  # the header's entries are in no order
    assert same(kept_rows("a", LABELS, never), DRAWN)


@pytest.mark.parametrize(
    "values",
    [{}, {"digest": ""}, {"digest": 5}, {"clients": 3}],
)
@pytest.mark.parametrize("missing", ["rows", "sizes", ""])
def test_a_file_of_another_kind_is_drawn_again(cache: Path, values: dict[str, int | str], missing: str) -> None:
    file = kept_file(cache)
    arrays: dict[str, NDArray[np.generic]] = {"rows": np.arange(9), "sizes": np.array([3, 3, 3])}
    arrays.pop(missing, None)
    write_safetensors(file, arrays, values)
    assert same(kept_rows("a", LABELS, drawn), DRAWN)
    assert same(kept_rows("a", LABELS, never), DRAWN)


def test_a_cache_that_cannot_be_written_draws_each_time(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    for _ in range(2):
        assert same(kept_rows("a", LABELS, drawn), DRAWN)
    assert cache.read_text().startswith("a file")


def test_what_the_draw_raises_goes_through_and_nothing_is_kept(cache: Path) -> None:
    def fail() -> list[Rows]:
        raise ConfigError("no such partition")

    with pytest.raises(ConfigError, match="no such partition"):
        kept_rows("a", LABELS, fail)
    assert not cache.exists() or not kept_files(cache)


@pytest.mark.parametrize("other_id", [1, 0], ids=["another process", "the same id in another container"])
@pytest.mark.parametrize("at", ["draw", "fsync", "replace"])
def test_another_writer_in_between_does_no_harm(
    cache: Path, monkeypatch: pytest.MonkeyPatch, at: str, other_id: int
) -> None:
    # While this process draws, has written, or is about to rename, another does all of it: a folder without locks.
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    found: list[list[Rows]] = []
    number = os.getpid()

    def other_process() -> None:
        if not found:
            found.append([])
            with monkeypatch.context() as patch:
                patch.setattr(fedappeal.system.files.os, "getpid", lambda: number + other_id)
                found[0] = kept_rows("a", LABELS, drawn)

    def after_the_other(act: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: object, **keywords: object) -> None:
            other_process()
            act(*arguments, **keywords)

        return wrapped

    def draw() -> list[Rows]:
        if at == "draw":
            other_process()
        return drawn()

    if at != "draw":
        monkeypatch.setattr(fedappeal.system.files.os, at, after_the_other(getattr(os, at)))
    assert same(kept_rows("a", LABELS, draw), DRAWN)
    assert same(found[0], DRAWN)
    assert same(kept_rows("a", LABELS, never), DRAWN)
    assert [p.name.startswith("partition-") for p in kept_files(cache)] == [True], "nothing is left over"


def test_of_threads_that_start_together_one_draws_and_the_others_wait(cache: Path) -> None:
    drawing, go_on, draws = threading.Event(), threading.Event(), []

    def slowly() -> list[Rows]:
        draws.append(1)
        drawing.set()
        assert go_on.wait(30)
        return drawn()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept_rows, "a", LABELS, slowly)
        assert drawing.wait(30)
        second = pool.submit(kept_rows, "a", LABELS, never)
        assert not second.done()
        go_on.set()
        assert same(first.result(30), DRAWN)
        assert same(second.result(30), DRAWN)
    assert len(draws) == 1


HAMMER = """
from pathlib import Path
import errno
import fcntl
import os
import numpy as np
from fedappeal.tasks.partitions.assign import kept_rows

labels, drawn = np.arange(20) % 4, [np.array(rows) for rows in ROWS]
wrong = 0
for turn in range(100):
    found = kept_rows("a", labels, lambda: drawn)
    wrong += [rows.tolist() for rows in found] != ROWS
    for file in Path(os.environ["XDG_CACHE_HOME"], "fedappeal").glob("partition-*"):
        if turn % 3 == 0:
            file.unlink(missing_ok=True)
        elif turn % 3 == 1:
            torn = file.with_name(f"torn-{os.getpid()}")  # not in place: what a reader has mapped must not shrink
            torn.write_bytes(b"torn")
            os.replace(torn, file)
print(wrong)
"""


def test_processes_that_write_damage_and_delete_at_once_do_no_harm(cache: Path) -> None:
    code = HAMMER.replace("ROWS", str([rows.tolist() for rows in DRAWN]))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(3)
    ]
    assert [process.communicate(timeout=120)[0] for process in started] == ["0\n"] * 3
    kept_rows("a", LABELS, drawn)
    assert same(kept_rows("a", LABELS, never), DRAWN)
    assert len(kept_files(cache)) == 1


WAITING = """
import sys, time
import numpy as np
from fedappeal.tasks.partitions.assign import kept_rows

def draw():
    print("draws", flush=True)
    time.sleep(1.0)
    return [np.array([0, 3, 5]), np.array([1, 2]), np.array([4, 6, 7, 8])]

kept_rows("a", np.arange(20, dtype=np.int64) % 4, draw)
"""


def test_of_clients_that_start_together_one_draws_and_the_others_wait() -> None:
    together = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(3)
    ]
    said = "".join(process.communicate(timeout=60)[0] for process in together)
    assert [process.returncode for process in together] == [0, 0, 0]
    assert said == "draws\n"
    assert same(kept_rows("a", LABELS, never), DRAWN)
