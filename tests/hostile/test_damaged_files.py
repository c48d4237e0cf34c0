"""Promise: every damaged byte of a checkpoint or a client record is noticed, and costs a round at most."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedappeal
from client.process.owner import RETURNED, pause, reset
from client.process.status import describe
from client.requirement import read_requirement, stored_requirement
from client.state.activity import ACTIVITY, Activity
from client.state.memory import RunMemory
from client.state.preferred import describe_preferred
from client.state.store import DiskStore
from fedappeal.cli.main import main
from fedappeal.core.local_rule import StoredRecord
from fedappeal.core.requirement import Requirement
from fedappeal.protocol.packing import content_hash
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CHECKPOINT, EVENTS, HISTORY, MEASUREMENTS, PARTICIPATION, POLICIES
from fedappeal.record.reader import Record as RunRecord
from fedappeal.record.reader import damages, rounds_done, usable_lines
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.system.files import read_safetensors, read_values, write_safetensors
from fedappeal.system.locks import CHANGES
from server.checkpoints import (
    Checkpoint,
    checkpoint_files,
    damaged_initials,
    flatten_records,
    initial_files,
    mend_files,
    newest_usable,
    settings_to_resume,
    write_checkpoint,
)

KEEP = {"identity", "noise-key"}


def checkpoint(server_round: int, value: float | None = None) -> Checkpoint:
    values = np.full(4, server_round if value is None else value, np.float32)
    state = RecordDict({"volunteers": ConfigRecord({"gone": ["a"], "pool-empty": 0, "finished": ""})})
    return Checkpoint(server_round, ArrayRecord(), ArrayRecord({"w": Array(values)}), state)


PATTERNS = (*(1 << bit for bit in range(8)), 0xFF, 0x5A)
"""Each bit alone, all of them, and some."""


def flips(path: Path, patterns: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Damage one byte of a file at a time, in each of these ways, and undo it."""
    content = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for position, byte in enumerate(content):
            for pattern in patterns:
                os.pwrite(file.fileno(), bytes([byte ^ pattern]), position)
                yield position, pattern
            os.pwrite(file.fileno(), bytes([byte]), position)


def noticed(read: Callable[[], object], where: tuple[int, int]) -> None:
    with pytest.raises(ConfigError) as error:  # where it is not raised, the byte was not noticed
        read()
    assert len(str(error.value).splitlines()) == 1, where


# -- every byte ------------------------------------------------------------------------------------------


def test_each_byte_of_a_checkpoint_that_is_another_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint(3).write(path)
    tried = [(where, noticed(lambda: Checkpoint.read(path), where)) for where in flips(path, PATTERNS)]
    assert len(tried) == len(PATTERNS) * path.stat().st_size
    assert Checkpoint.read(path).server_round == 3


def test_each_byte_of_a_client_record_that_is_another_is_noticed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.write("requirement-1", StoredRecord({"rho": 0.5, "of": "loss", "solo-score": 0.25}, {"w": np.ones(2)}))
    for where in flips(store.path("requirement-1"), PATTERNS):
        noticed(lambda: store.look("requirement-1"), where)


def test_a_file_cut_short_at_any_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint(3).write(path)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ConfigError):
            Checkpoint.read(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ConfigError):
        Checkpoint.read(path)


# -- three checkpoints -----------------------------------------------------------------------------------


def damage(path: Path, at: int = -1) -> bytes:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)
    return bytes(content)


def test_the_last_three_are_kept(tmp_path: Path) -> None:
    for server_round in (2, 5, 6, 9, 12):
        kept = write_checkpoint(tmp_path, checkpoint(server_round))
        assert rounds_done(tmp_path) == server_round
    assert kept == [12, 9, 6]
    assert {file.name for file in tmp_path.iterdir()} == {
        *(CHECKPOINT, "checkpoint-6.safetensors", "checkpoint-9.safetensors"),
        *(file.name for file in initial_files(tmp_path, content_hash(ArrayRecord()))),
    }
    assert [Checkpoint.read(file).server_round for file in checkpoint_files(tmp_path)] == [12, 9, 6]


def _steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each call that changes a name, in turn: it and all that follow are lost."""
    for name in ("os.link", "os.replace", "os.unlink"):
        for number in range(4):
            calls = 0
            real = getattr(os, name.partition(".")[2])

            def killed(*given: Any, real: Any = real, number: int = number, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > number:
                    raise KeyboardInterrupt
                return real(*given, **options)

            yield f"{name} {number}", lambda name=name, killed=killed: monkeypatch.setattr(name, killed)  # type: ignore[misc]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_kill_between_any_two_steps_leaves_the_newest_or_the_one_before(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*given: Any) -> None:
        raise OSError(1, "Operation not permitted")

    for number, (_, kill) in enumerate(_steps(monkeypatch)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for server_round in (1, 2, 3):
            write_checkpoint(folder, checkpoint(server_round))
        if not links:
            monkeypatch.setattr("os.link", no_links)
        kill()
        with suppress(KeyboardInterrupt):
            write_checkpoint(folder, checkpoint(4))
        monkeypatch.undo()
        found = newest_usable(folder)
        assert found.server_round in (3, 4)
        assert not found.newer
        assert {1, 2} & {Checkpoint.read(file).server_round for file in checkpoint_files(folder)}
        write_checkpoint(folder, checkpoint(5))
        assert newest_usable(folder).server_round == 5
        assert len(checkpoint_files(folder)) == 3


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run after round 6."""
    made = RunPlan.of(RunConfig(rounds=9), tmp_path / "run").folder({"kind": "submitted"})
    for server_round in range(1, 7):
        made.event("round", round=server_round)
        numbers = dict.fromkeys(("asked", "joined", "sat_out", "left", "evaluated", "bytes_up", "bytes_down"), 1)
        made.append(HISTORY, {"round": server_round, **numbers, "seconds": 0.5})
        made.append(PARTICIPATION, {"round": server_round, "client-id": "a", "decision": "joined"})
        write_checkpoint(made.path, checkpoint(server_round))
    return made


def test_the_one_before_is_used_and_named_and_the_damaged_one_is_kept(folder: RunFolder) -> None:
    newest = folder.path / CHECKPOINT
    bytes_of_it, said = damage(newest), list[str]()
    assert settings_to_resume(folder.path).rounds == 9
    assert newest.exists(), "asking changes nothing"
    with folder.alone():
        found = mend_files(folder, said.append)
    assert found.server_round == rounds_done(folder.path) == 5
    (line,) = said
    assert "its arrays do not match their checksum: the run continues after round 5, from 'checkpoint-5." in line
    assert (folder.path / f"{CHECKPOINT}.damaged").read_bytes() == bytes_of_it
    event = RunRecord(folder.path).events[-1]
    assert (event["event"], event["file"], event["aside"], event["round"]) == (
        *("damaged", CHECKPOINT, f"{CHECKPOINT}.damaged", 5),
    )
    damage(newest, 20)
    assert mend_files(folder, said.append).server_round == 4
    assert (folder.path / f"{CHECKPOINT}.damaged-2").exists()
    assert mend_files(folder, said.append).newer == {}
    assert len(said) == 2


def test_a_run_that_goes_on_is_not_called_lost(folder: RunFolder) -> None:
    for file in checkpoint_files(folder.path):
        damage(file)
    with folder.alone(), pytest.raises(ConfigError, match=f"holds a run that process {os.getpid()} is running"):
        settings_to_resume(folder.path)
    with pytest.raises(ConfigError, match="the run cannot continue"):
        settings_to_resume(folder.path)


def test_a_file_that_a_run_deletes_meanwhile_is_not_damaged(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(file: Path) -> None:
        file.unlink(missing_ok=True)
        read_values(file)

    monkeypatch.setattr("fedappeal.record.reader.read_values", read)
    assert list(damages(folder.path)) == []


@pytest.mark.parametrize("name", [HISTORY, PARTICIPATION, EVENTS, MEASUREMENTS])
@pytest.mark.parametrize(("kept", "lost"), [(0, "round 1 is missing, and 5 more"), (5, "round 6 is missing")])
def test_rounds_that_a_cut_file_lost_are_named_once(folder: RunFolder, name: str, kept: int, lost: str) -> None:
    folder.append(MEASUREMENTS, *({"round": n, "client-ids": ["a"]} for n in range(1, 7)))
    assert list(damages(folder.path)) == []
    file, said = folder.path / name, list[str]()
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:kept]))
    assert f"file '{file}' is damaged: {lost}" in list(damages(folder.path))
    _ = (record := RunRecord(folder.path)).history
    assert name != HISTORY or lost in record.damage[HISTORY]
    with folder.alone():
        for _ in range(2):
            mend_files(folder, said.append)
    assert said == [f"file '{file}' is damaged ({lost}): the run continues without these lines"]
    assert RunRecord(folder.path).events[-1]["reason"] == lost


def test_a_damaged_initial_model_has_a_copy_and_comes_back_with_the_next_checkpoint(folder: RunFolder) -> None:
    first, second = initial_files(folder.path, content_hash(ArrayRecord()))
    for file in (first, second):
        damaged, said = damage(file, 20), list[str]()
        assert newest_usable(folder.path).server_round == 6
        with folder.alone():
            found = mend_files(folder, said.append)
        assert (found.server_round, found.newer) == (6, {})
        (line,) = said
        assert file.name in line
        assert (folder.path / f"{file.name}.damaged").read_bytes() == damaged
        assert RunRecord(folder.path).events[-1]["file"] == file.name
        assert not file.exists()
        assert found.checkpoint is not None
        found.checkpoint.write(folder.path / CHECKPOINT)
        assert file.exists()
        assert damaged_initials(folder.path) == {}
    damage(first, 20)
    damage(second, 20)
    with pytest.raises(ConfigError, match=r"initial-.* nor can the 2 before it: the run cannot continue"):
        newest_usable(folder.path)


def test_a_checkpoint_that_holds_the_initial_model_itself_still_continues(folder: RunFolder) -> None:
    for file in initial_files(folder.path, content_hash(ArrayRecord())):
        file.unlink()
    initial = ArrayRecord({"w": Array(np.ones(4, np.float32))})
    arrays, records = flatten_records({"initial": initial, "model": checkpoint(6).arrays})
    write_safetensors(folder.path / CHECKPOINT, arrays, {"round": 6, "records": records})
    found = newest_usable(folder.path)
    assert (found.server_round, found.newer) == (6, {})
    assert found.checkpoint is not None
    assert found.checkpoint.initial == initial


def test_a_model_that_is_not_finite_is_no_checkpoint(folder: RunFolder) -> None:
    checkpoint(6, float("nan")).write(folder.path / CHECKPOINT)
    found = newest_usable(folder.path)
    assert found.server_round == 5
    assert "values that are not finite" in next(iter(found.newer.values()))


def test_without_one_that_can_be_used_the_run_is_refused_and_nothing_is_changed(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in checkpoint_files(folder.path):
        damage(file)
    before = {file.name: file.read_bytes() for file in folder.path.iterdir()}
    monkeypatch.setattr(sys, "argv", ["fedappeal", "resume", str(folder.path), "--superlink", "127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.endswith("do not match their checksum, nor can the 2 before it: the run cannot continue")
    assert {file.name: file.read_bytes() for file in folder.path.iterdir()} == before


@pytest.mark.parametrize("name", [CHECKPOINT, "memory-2.safetensors"])
@pytest.mark.parametrize("rounds", [2, 3])
def test_a_short_simulation_has_a_predecessor_from_the_second_round_on(
    name: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One minute between checkpoints: so short a run would have one alone.
    monkeypatch.setattr("server.recorder.SECONDS_APART", 60.0)
    config = RunConfig.parse(
        {"clients": 2, "rounds": rounds, "local-steps": 2, "strategy": "scaffold", "solo.steps": 1}
    )
    for folder in ("whole", "damaged"):
        simulate(config, RunPlan.of(config, tmp_path / folder).folder({}), Simulation(mode="sequential"))
    file = tmp_path / "damaged" / name.replace("2", str(rounds))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for folder in ("whole", "damaged"):
        assert fedappeal.load(tmp_path / folder, quiet=True).resume(rounds=rounds + 1).rounds == rounds + 1
    models = [(tmp_path / folder / "model.safetensors") for folder in ("whole", "damaged")]
    arrays = [read_safetensors(path)[0] for path in models]
    assert all(np.array_equal(arrays[0][key], arrays[1][key]) for key in arrays[0])
    assert [line["round"] for line in RunRecord(tmp_path / "damaged").history] == [*range(1, rounds + 2)]


def test_a_checkpoint_of_an_earlier_version_still_continues(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedappeal.system.files.UNSEALED", {})
    monkeypatch.setattr("fedappeal.system.files.seal", lambda path: None)
    for file in checkpoint_files(folder.path):
        file.unlink()
    checkpoint(6).write(folder.path / CHECKPOINT)
    assert b"checksum" not in (folder.path / CHECKPOINT).read_bytes()
    assert newest_usable(folder.path).server_round == 6


# -- JSON lines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        (HISTORY, b'{"round": 3}', "line 7: it has no 'asked'"),
        (HISTORY, b'{"asked": 3}', "line 7: it has no 'round'"),
        (HISTORY, b"[1, 2", "line 7: Expecting"),
        (HISTORY, b'{"round": 3, "x": "\xff"}', "line 7: Invalid"),
        (PARTICIPATION, b'{"round": 3}', "line 7: it has no 'client-id'"),
        (PARTICIPATION, b'{"round": -3, "client-id": "a", "decision": "joined"}', "line 7: round = -3"),
        (POLICIES, b'{"policy": "appeal"}', "line 1: it has no 'client-id'"),
        (POLICIES, b'{"policy": 3, "client-id": "a"}', "line 1: policy = 3 is not allowed"),
        (EVENTS, b"{}", "line 7: it has no 'event'"),
    ],
)
def test_lines_that_cannot_be_used_are_left_out_and_named(
    file: str, text: bytes, reason: str, folder: RunFolder
) -> None:
    path, said = folder.path / file, list[str]()
    with open(path, "ab") as out:
        out.write(text + b"\n")
    damaged, good = path.read_bytes(), path.read_bytes()[: -len(text) - 1]
    assert mend_files(folder, said.append).server_round == 6
    (line,) = said
    assert f"'{path}' is damaged ({reason}" in line
    assert path.with_name(f"{file}.damaged").read_bytes() == damaged
    assert path.read_bytes().startswith(good)
    assert RunRecord(folder.path).events[-1]["file"] == file
    folder.forget_after(6)


def test_each_byte_of_a_line_that_is_another_leaves_a_run_that_continues(folder: RunFolder) -> None:
    path = folder.path / HISTORY
    for _ in flips(path, (1, 0x80)):
        assert 4 <= len(usable_lines(path)[0]) <= 6
    content = path.read_bytes()
    for position in range(0, len(content), 53):
        for byte in (b"\n", b"}", b"\xff", b"9"):
            path.write_bytes(content[:position] + byte + content[position + 1 :])
            mend_files(folder, lambda line: None)
            folder.forget_after(6)
            assert {line["round"] for line in RunRecord(path.parent).lines(path.name)} >= set(range(1, 7)) - {
                content[:position].count(b"\n") + 1,
                content[:position].count(b"\n") + 2,
            }


def test_a_last_line_that_has_lost_its_end_is_whole(folder: RunFolder) -> None:
    path = folder.path / HISTORY
    path.write_bytes(path.read_bytes()[:-1])
    assert mend_files(folder, pytest.fail).server_round == 6
    path.write_bytes(path.read_bytes() + b'{"round": 7, "as')
    folder.forget_after(6)
    assert [line["round"] for line in RunRecord(path.parent).lines(path.name)] == list(range(1, 6))


# -- a client's state ------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> DiskStore:
    store = DiskStore(tmp_path / "state")
    store.write("identity", StoredRecord({"client-id": "anna"}))
    store.write("noise-key", StoredRecord({"key": "secret"}))
    store.write("requirement-1", StoredRecord({"rho": 0.5, "of": "loss", "solo-score": 0.25}, {"w": np.ones(2)}))
    store.write("preferred", StoredRecord({"which": "solo", "run-key": "k"}, {"w": np.ones(2)}))
    RunMemory(store, "k").requirement = "requirement-1"
    RunMemory(store, "k").leave(4)
    Activity(store.folder).answered("k", {"strategy": "maxfl", "task": "digits"}, done="left")
    return store


def test_a_damaged_requirement_is_made_again(state: DiskStore, caplog: pytest.LogCaptureFixture) -> None:
    damage(state.path("requirement-1"))
    made = stored_requirement(state, "requirement-1", lambda: Requirement(0.75))
    assert made.rho == 0.75
    assert "requirement-1.safetensors.damaged', and made again where a run needs it" in caplog.text
    assert read_requirement(state, "requirement-1") == Requirement(0.75) or made.solo_score != made.solo_score
    assert state.path("requirement-1").with_name("requirement-1.safetensors.damaged").exists()


@pytest.mark.parametrize("name", ["identity", "noise-key", "run-k"])
def test_what_cannot_be_made_again_has_a_copy(name: str, state: DiskStore, caplog: pytest.LogCaptureFixture) -> None:
    before = state.look(name)
    assert before is not None
    for lost in (damage, Path.unlink):
        lost(state.path(name))
        assert state.look(name) == before, "without a change"
        assert state.read(name) == before
        (state.folder / "copies" / f"{name}.safetensors").write_bytes(state.path(name).read_bytes())
    assert "its copy takes its place" in caplog.text
    assert RunMemory(state, "k").has_left(9)


@pytest.mark.parametrize("name", ["identity", "noise-key", "run-k"])
def test_where_both_are_damaged_the_client_refuses_and_its_owner_can_reset(name: str, state: DiskStore) -> None:
    for file in (state.path(name), state.folder / "copies" / f"{name}.safetensors"):
        damage(file)
    for _ in range(2):  # never taken for a client that has not left
        with pytest.raises(ConfigError, match=rf"{name}\.safetensors' cannot be read"):
            state.read(name)
    told = "damaged    run-k: the client takes no part" if name == "run-k" else "client     an"
    assert any(line.startswith(told) for line in describe(state.folder))
    assert "; 1 damaged record put aside" in reset(state.folder)
    assert state.read(name) is None
    assert state.path(name).with_name(f"{name}.safetensors.damaged").exists()


def test_the_owners_commands_work_on_any_damaged_file(state: DiskStore) -> None:
    kept = {file: file.read_bytes() for file in state.folder.rglob("*") if file.is_file() and file.name != CHANGES}
    for file, content in kept.items():
        for damaged in (content[:10], b"", content[:-1] + bytes([content[-1] ^ 1]), content[:20] + b"\xff" * 9):
            for forget in (False, True):
                for path, whole in kept.items():
                    path.write_bytes(whole)
                file.write_bytes(damaged)
                before = {path: path.read_bytes() for path in state.folder.rglob("*") if path.is_file()}
                assert all(line == line.strip() or line.startswith(" ") for line in describe(state.folder))
                assert before == {path: path.read_bytes() for path in state.folder.rglob("*") if path.is_file()}
                pause(state.folder)
                assert reset(state.folder, forget).startswith("back: not paused, ")
                names = set(state.names())
                assert names == KEEP if forget else names >= KEEP | {"requirement-1", "preferred"}
                if forget:
                    kept_on = {"answers.json", "changes.lock", RETURNED}  # an empty mark: come online anew
                    left = {path.name for path in state.folder.rglob("*")} - kept_on
                    assert left == {*(f"{name}.safetensors" for name in KEEP), "copies"}


def test_damaged_figures_are_begun_anew_and_kept(state: DiskStore) -> None:
    file = state.folder / ACTIVITY
    for text in ("[", "{}", "[7]", '[{"run_key": 3}]', "\\", "null"):
        file.write_text(text)
        assert Activity(state.folder).runs() == {}
        describe(state.folder)
    Activity(state.folder).answered("n", {})
    assert list(Activity(state.folder).runs()) == ["n"]
    assert file.with_name(f"{ACTIVITY}.damaged").read_text() == "null"
    record = json.loads(file.read_text())
    file.write_text(json.dumps([{**record[0], "first": "yesterday"}]))
    describe(state.folder)


def test_only_the_owner_can_read_it(state: DiskStore) -> None:
    previous = os.umask(0o022)
    try:
        state.write("run-new", StoredRecord({"requirement": "", "left-round": 0}))
        pause(state.folder)
    finally:
        os.umask(previous)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [state.folder, *state.folder.rglob("*")]}
    assert {
        name: mode for name, mode in modes.items() if mode != (0o700 if name in ("state", "copies") else 0o600)
    } == {}


def test_a_record_of_another_kind_is_told_too(state: DiskStore) -> None:
    write_safetensors(state.path("run-other"), {}, {"n": 1})
    write_safetensors(state.path("requirement-other"), {}, {"n": 1})
    write_safetensors(state.path("preferred"), {}, {"n": 1})
    lines = describe(state.folder)
    assert sum(line.startswith("damaged    r") for line in lines) == 2
    assert describe_preferred(state) == []
    assert "1 damaged record put aside" in reset(state.folder)
    assert read_requirement(state, "requirement-other") is None
