"""The file of a federation's client-ids: whose it is, where it lies, what survives."""

import json
import multiprocessing
import threading
from pathlib import Path

import pytest

from fedappeal.record.folder import KIND, LOCAL, SUBMITTED
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system import locks
from fedappeal.system.locks import only_process
from server import identities
from server.identities import FILE, IdentityFile, identities_of
from strategies.rounds.exchange.ownership import ProvenKey
from strategies.rounds.reply import Refused

ALICE, BOB = ProvenKey("a" * 64, True), ProvenKey("b" * 64, True)
PASSING = ProvenKey("c" * 64, False)


def claim(file: IdentityFile, client_id: str, key: ProvenKey) -> None:
    with file.open() as owners:
        owners.claim(client_id, key)


def test_what_a_run_learned_the_next_one_knows(tmp_path: Path) -> None:
    claim(IdentityFile(tmp_path, "one"), "alice", ALICE)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused):
        claim(IdentityFile(tmp_path, "two"), "alice", BOB)
    claim(IdentityFile(tmp_path, "two"), "alice", ALICE)


def test_a_connections_key_counts_in_its_run_also_when_that_is_resumed(tmp_path: Path) -> None:
    claim(IdentityFile(tmp_path, "one"), "carol", PASSING)
    with pytest.raises(Refused):
        claim(IdentityFile(tmp_path, "one"), "carol", BOB)
    claim(IdentityFile(tmp_path, "two"), "carol", ProvenKey("d" * 64, False))
    assert IdentityFile(tmp_path).read().runs == {"one": {"carol": "c" * 64}, "two": {"carol": "d" * 64}}


def test_the_runs_that_are_kept_are_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_RUNS", 3)
    for run in ("one", "two", "three", "four", "five"):
        claim(IdentityFile(tmp_path, run), "carol", PASSING)
    assert list(IdentityFile(tmp_path).read().runs) == ["three", "four", "five"]


def test_a_local_run_keeps_its_own_and_submitted_ones_share_theirs(tmp_path: Path) -> None:
    local = RunPlan.of(RunConfig(), tmp_path / "local").folder({KIND: LOCAL})
    submitted = RunPlan.of(RunConfig(), tmp_path / "first").folder({KIND: SUBMITTED})
    assert identities_of(local.path, local.run_key).path == tmp_path / "local" / FILE
    assert identities_of(submitted.path, submitted.run_key).path == tmp_path / FILE


def test_what_is_only_read_is_not_written(tmp_path: Path) -> None:
    claim(IdentityFile(tmp_path), "alice", ALICE)
    before = (tmp_path / FILE).stat().st_ino
    claim(IdentityFile(tmp_path), "alice", ALICE)
    assert (tmp_path / FILE).stat().st_ino == before


def test_a_refusal_in_between_loses_nothing(tmp_path: Path) -> None:
    with IdentityFile(tmp_path).open() as owners:
        owners.claim("alice", ALICE)
        with pytest.raises(Refused):
            owners.claim("alice", BOB)
        owners.claim("bob", BOB)
    assert IdentityFile(tmp_path).read().clients == {"alice": "a" * 64, "bob": "b" * 64}


def test_the_operator_releases_an_id_in_all_runs(tmp_path: Path) -> None:
    claim(IdentityFile(tmp_path, "one"), "carol", PASSING)
    IdentityFile(tmp_path).release("carol", "b" * 16)
    claim(IdentityFile(tmp_path, "one"), "carol", BOB)
    with pytest.raises(Refused):
        claim(IdentityFile(tmp_path, "one"), "carol", PASSING)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "clients": []}',
        '{"format": 1, "clients": {"a b": ""}, "runs": {}}',
    ],
)
def test_a_damaged_file_frees_no_id(tmp_path: Path, damaged: str) -> None:
    (tmp_path / FILE).write_text(damaged)
    with pytest.raises(ConfigError, match=f"file '.*{FILE}' cannot be read: .*put back a copy"):
        claim(IdentityFile(tmp_path), "alice", ALICE)
    assert (tmp_path / FILE).read_text() == damaged


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not allowed"):
        claim(IdentityFile(tmp_path / "file"), "alice", ALICE)


def _claim_many(folder: str, start: int) -> None:
    for number in range(start, start + 20):
        claim(IdentityFile(Path(folder)), f"c{number}", ProvenKey(f"{number:064x}", True))


def test_two_runs_at_once_lose_none(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("fork").Process(target=_claim_many, args=(str(tmp_path), n)) for n in (0, 20)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert len(json.loads((tmp_path / FILE).read_text())["clients"]) == 40


def test_a_lock_that_is_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: released.set() or held.__exit__(None, None, None))
    held = only_process(tmp_path, identities._LOCK)
    held.__enter__()
    claim(IdentityFile(tmp_path), "alice", ALICE)
    assert released.is_set()
