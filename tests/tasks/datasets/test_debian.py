"""Debian packages by maintainer: on a small list of the same form, and on this machine's own where it has one."""

import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.datasets import debian
from fedappeal.tasks.datasets.debian import FEATURES, SECTIONS, Debian, Package, hash_words, words
from tests.tasks.people import stanza, write_available

ANN, TEAM = "Ann Ex <Ann@example.org>", "The Team <team@example.org>"
LISTED = (
    stanza("liba1", ANN, "libs", "a library", "a")
    + stanza("liba-dev", ANN, "libdevel", "a library (development files)", "a (1.0-1)")
    + stanza("b", TEAM, "non-free/games", "shoot-em-up in C++")
    + stanza("c", ANN, "no-such-section", "unknown")
    + stanza("d", TEAM, "python", "game game")
    + stanza("e", ANN, "net", "!")
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is kept from one list to the next."""
    debian._examples_by_person.cache_clear()
    yield
    debian._examples_by_person.cache_clear()


def task_of(root: Path | None, **values: object) -> Debian:
    settings = TaskSettings.model_validate({"task": "debian", "clients": 2, "min_examples": 2, **values})
    load_task(settings, root).check()
    task = load_task(settings, root)
    assert isinstance(task, Debian)
    return task


def test_one_package_of_each_source_is_read(tmp_path: Path) -> None:
    write_available(tmp_path, LISTED)
    assert debian.read_packages(tmp_path) == [
        Package("ann@example.org", "libs", "a library"),
        Package("team@example.org", "games", "shoot-em-up in C++"),
        Package("ann@example.org", "no-such-section", "unknown"),
        Package("team@example.org", "python", "game game"),
        Package("ann@example.org", "net", "!"),
    ]


def test_clients_are_maintainers(tmp_path: Path) -> None:
    write_available(tmp_path, LISTED)
    task = task_of(tmp_path)
    held = task.examples_by_person()
    assert {who: [SECTIONS[k] for k in y] for who, (_, y) in held.items()} == {
        "ann@example.org": ["libs", "net"],
        "team@example.org": ["games", "python"],
    }
    assert sorted(task.load(k).counts for k in range(2)) == [(1, 1), (1, 1)]
    row = held["team@example.org"][0][1]
    assert np.flatnonzero(row).tolist() == [zlib.crc32(b"game") % FEATURES]
    assert row.max() == 1.0
    assert not held["ann@example.org"][0][1].any()
    with pytest.raises(ConfigError, match="0 maintainers have min-examples = 3 packages or more"):
        task_of(tmp_path, min_examples=3)


VERSIONS = "".join(
    stanza(f"prog-{k}", ANN, "devel" if k % 2 else "utils", "The GNU C compiler", f"prog-{k}") for k in range(4)
) + "".join(stanza(f"other-{k}", ANN, "net", f"program number{k}", f"other-{k}") for k in range(8))


def test_no_test_example_reads_like_a_training_example_of_its_client(tmp_path: Path) -> None:
    write_available(tmp_path, VERSIONS + stanza("theirs", TEAM, "devel", "the gnu c compiler!", "t") + LISTED)
    held = task_of(tmp_path).examples_by_person()
    assert [SECTIONS[label] for label in held["ann@example.org"][1]] == ["utils", *["net"] * 8, "libs", "net"]
    assert len(held["team@example.org"][1]) == 3, "another maintainer's package of the same words stays"
    for seed in range(20):
        task = task_of(tmp_path, seed=seed)
        for client in range(2):
            data = task.load(client)
            train = {row.tobytes() for row in data.train.x.numpy()}
            assert not train & {row.tobytes() for row in data.test.x.numpy()}


def test_a_run_of_the_older_packages_does_not_continue_with_these(tmp_path: Path) -> None:
    assert Debian(TaskSettings(task="debian")).fingerprint != "55162090fbe9388f"  # of the data before that change


def test_words_and_their_hash() -> None:
    assert words("Shoot-em-up in C++, by x.org. (3D) …é") == ["shoot-em-up", "in", "c++", "by", "x.org.", "3d"]
    # CRC-32 of "123456789" is 0xCBF43926, the check value of its specification.
    rows = hash_words(["123456789 123456789", "", "123456789 a"], 1000)
    check = 0xCBF43926 % 1000
    assert np.flatnonzero(rows[0]).tolist() == [check]
    assert not rows[1].any()
    assert sorted(np.flatnonzero(rows[2])) == sorted([check, zlib.crc32(b"a") % 1000])
    assert set(rows[2]) == {0.0, 1.0}


def test_sections_are_told_apart() -> None:
    assert list(SECTIONS) == sorted(set(SECTIONS))


def test_a_list_is_read_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_available(tmp_path, LISTED)
    monkeypatch.setattr(debian, "MAX_PACKAGES", 5)
    with pytest.raises(ConfigError, match=f"^task = 'debian': {path} has more than 5 packages$"):
        task_of(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(debian, "MAX_BYTES", len(LISTED) - 1)
    with pytest.raises(ConfigError, match=f"^task = 'debian': {path} is longer than {len(LISTED) - 1:,} bytes$"):
        task_of(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(debian, "MAX_LINE", 64)
    long = stanza("f", "F <f@example.org>", "net", "x" * 100 + "\nSection: games")
    write_available(tmp_path, long.replace("Description: ", "Other: "))
    with pytest.raises(ConfigError, match="lists no package"):
        task_of(tmp_path)
    write_available(tmp_path, long)
    assert debian.read_packages(tmp_path) == [Package("f@example.org", "games", "x" * (64 - len("Description: ")))]


def test_no_list_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_available(tmp_path, "no such form\n\n\n: \n")
    with pytest.raises(ConfigError, match=r"available lists no package: run apt-get update, or put"):
        task_of(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^task = 'debian' needs apt-cache, which Debian and Ubuntu have; elsewhere"
    ):
        task_of(None)


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="needs apt-cache, which Debian and Ubuntu have")
def test_this_machines_own_list() -> None:
    try:
        packages = debian.read_packages(None)
    except ConfigError as error:
        pytest.skip(f"apt has no lists here: {error}")
    maintainers = {package.maintainer for package in packages}
    assert len(packages) > len(maintainers) >= 1
    known = sum(package.section in SECTIONS for package in packages)
    assert known > 0.9 * len(packages)
