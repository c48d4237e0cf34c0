"""Own models that memory has no room for are files of the run's folder, and change no number of a run."""

import errno
import multiprocessing
import re
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from client.settings import NodeSettings
from fedappeal.core.local_rule import StoredRecord
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import MODEL, OWN_MODELS, REQUIREMENTS
from fedappeal.record.reader import Record, damages
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.forms.scheduler import clients_at_once
from fedappeal.simulation.memory import SavedMemory
from fedappeal.simulation.options import SEQUENTIAL, Simulation
from fedappeal.simulation.own_models import FileArrays, NotKept, stores_of_run
from fedappeal.simulation.workers.process import _serve
from fedappeal.system.files import read_safetensors, write_safetensors
from server.checkpoints import settings_to_resume
from tests.simulation.test_resume import (
    _one_thread_and_every_checkpoint,
    killed_after,
    left_by,
    resume,
    run,
    settings,
)
from tests.simulation.workers.local import workers

__all__ = ["_one_thread_and_every_checkpoint", "workers"]
BEST = settings(strategy="maxfl", judge_on="cross-fitted", use="best", clients_per_round=0)
SHARED = settings(strategy="fedavg", share="!*bias")
KINDS = {
    "best": BEST,
    "ditto": settings(strategy="ditto"),
    "scaffold": settings(strategy="scaffold"),
    "share": SHARED,
}


def on_disk(monkeypatch: pytest.MonkeyPatch, most: int = 0) -> None:
    monkeypatch.setattr("fedappeal.simulation.own_models.OWN_MODELS_BYTES", most)


def numbers(path: Path) -> dict[str, Any]:
    """All that a run leaves, but for the form in which its clients' memory is kept."""
    return {key: value for key, value in left_by(path).items() if key != "memory"}


def names(path: Path) -> set[str]:
    return {file.name for file in path.glob(f"{OWN_MODELS}/*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients' models are in memory, and which nothing stops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.recorder.SECONDS_APART", 0.0)
        patch.setattr("server.recorder.LARGEST_SHARE", 0)
        return run(tmp_path_factory.mktemp("whole") / "run", BEST, SEQUENTIAL)


def killed(path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> Path:
    """Return a run that was killed before the checkpoint of round 4."""
    with monkeypatch.context() as patch:
        on_disk(patch, most)
        killed_after(patch, 3)
        with pytest.raises(RuntimeError, match="killed"):
            run(path, BEST, SEQUENTIAL)
    return path


def memory_text(path: Path, server_round: int) -> str:
    return read_safetensors(path / f"memory-{server_round}.safetensors")[0]["text"].tobytes().decode()


def named_by_memories(path: Path) -> set[str]:
    """The files that the memories of a run's checkpoints name."""
    texts = [memory_text(path, int(file.stem.removeprefix("memory-"))) for file in path.glob("memory-*")]
    return {name for text in texts for name in re.findall(r"[0-9]{4}-[0-9a-f]{16}\.safetensors", text)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [SEQUENTIAL, "auto"])
def test_models_on_the_disk_change_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, kind: str
) -> None:
    whole = run(tmp_path / "memory", KINDS[kind], mode)
    on_disk(monkeypatch)
    other = run(tmp_path / "disk", KINDS[kind], mode)
    assert numbers(other) == numbers(whole)
    assert names(other) == named_by_memories(other) != set()
    assert not (whole / OWN_MODELS).exists()


def test_records_stay_in_memory_where_all_clients_could_keep_them_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for clients, kept in ((7, True), (8, False)):  # one of them unseen; 650 parameters
        on_disk(monkeypatch, 2 * 7 * 4 * 650)
        path = run(tmp_path / str(clients), settings(clients=clients - 1, rounds=1, mandatory_rounds=1))
        assert (path / OWN_MODELS).exists() is not kept


@pytest.mark.usefixtures("workers")
def test_workers_read_and_write_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_disk(monkeypatch)
    shared_out, path = Simulation(SEQUENTIAL, threads=1, workers=2), tmp_path / "run"
    with monkeypatch.context() as patch, caplog.at_level("INFO", "fedappeal"):
        killed_after(patch, 3)
        with pytest.raises(RuntimeError, match="killed"):
            simulate(BEST, RunPlan.of(BEST, path).folder({}), shared_out)
    assert caplog.text.count("the clients' own models are in") == 1
    simulate(settings_to_resume(path), RunFolder.open(path), shared_out)
    assert numbers(path)["model"] == numbers(whole)["model"]
    assert numbers(path)["history"] == numbers(whole)["history"]


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1 << 30, 0), (0, 1 << 30)])
def test_a_run_that_was_killed_continues_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, before: int, after: int
) -> None:
    path = killed(tmp_path / "run", monkeypatch, before)
    left = path / OWN_MODELS / ".0001-0123456789abcdef.safetensors.999999999.tmp"
    left.parent.mkdir(exist_ok=True)
    left.touch()
    on_disk(monkeypatch, after)
    resume(path)
    assert numbers(path) == numbers(whole)
    assert names(path) == named_by_memories(path)


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_damaged_model_takes_the_run_back_to_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, damage: str
) -> None:
    path = killed(tmp_path / "run", monkeypatch, 0)
    texts = {number: memory_text(path, number) for number in (2, 3)}
    files = [path / OWN_MODELS / name for name in names(path) if name in texts[3] and name not in texts[2]]
    for file in files if damage == "changed" else files[:1]:
        content = file.read_bytes()
        file.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
        if damage == "gone":
            file.unlink()
    if damage == "changed":  # which is found where a client is asked
        assert all(any(str(file) in line for line in damages(path)) for file in files)
        with pytest.raises(
            ConfigError, match=rf"^file '{path}/own-models/.*' cannot be read: its arrays do not match"
        ):
            resume(path)
        assert [file.exists() for file in files].count(False) == 1
    resume(path)
    assert Record(path).config["resumptions"][-1]["from-round"] == 2
    assert numbers(path) == numbers(whole)


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/etc/passwd", "0001-0123456789abcdef.safetensors"])
def test_a_memory_that_names_other_files_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = killed(tmp_path / "run", monkeypatch, 0)
    for number in (1, 2, 3):
        file = path / f"memory-{number}.safetensors"
        arrays, values = read_safetensors(file)
        text = arrays["text"].tobytes().decode()
        text = re.sub(r"[0-9]{4}-[0-9a-f]{16}\.safetensors", name, text)
        write_safetensors(file, {**arrays, "text": np.frombuffer(text.encode(), np.uint8)}, values)
    with pytest.raises(ConfigError, match="the run cannot continue") as error:
        resume(path)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("how", [Simulation(SEQUENTIAL, threads=1), Simulation("auto", threads=1)])
def test_a_full_disk_ends_the_run_and_it_continues_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Simulation
) -> None:
    undisturbed, path = run(tmp_path / "whole", BEST, how.mode), tmp_path / "run"
    on_disk(monkeypatch)
    calls = iter(range(1000))

    def full(*given: Any, **more: Any) -> None:
        if next(calls) == 30:
            raise OSError(errno.ENOSPC, "No space left on device", str(given[0]))
        write_safetensors(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr("fedappeal.simulation.own_models.write_safetensors", full)
        with pytest.raises(OSError, match="No space left on device"):
            simulate(BEST, RunPlan.of(BEST, path).folder({}), how)
    assert 0 < len(Record(path).history) < BEST.rounds
    simulate(settings_to_resume(path), RunFolder.open(path), how)
    assert numbers(path) == numbers(undisturbed)


def test_a_worker_tells_of_a_full_disk_as_the_disk_does(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([OSError(errno.ENOSPC, "No space left on device", "x"), FileNotFoundError(errno.ENOENT, "gone")])

    class Worker:
        def __init__(self, job: object) -> None:
            pass

        def load(self) -> None:
            raise next(errors)

    monkeypatch.setattr("fedappeal.simulation.workers.process.EngineWorker", Worker)
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=_serve, args=(theirs, None))
    thread.start()
    told = []
    for _ in range(2):
        ours.send(("load", ()))
        told.append(ours.recv()[1])
    ours.close()
    thread.join()
    assert [(type(error), getattr(error, "errno", None)) for error in told] == [
        (OSError, errno.ENOSPC),
        (ConfigError, None),
    ]


def test_a_run_that_keeps_no_memory_deletes_what_no_client_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, path = run(tmp_path / "kept", BEST), tmp_path / "run"
    on_disk(monkeypatch)
    written: set[str] = set()

    def noted(file: Path, *arguments: Any, **options: Any) -> None:
        written.add(file.name)
        write_safetensors(file, *arguments, **options)

    monkeypatch.setattr("fedappeal.simulation.own_models.write_safetensors", noted)
    simulate(BEST, RunPlan.of(BEST, path).folder({}), Simulation(threads=1, resumable=False))
    assert read_safetensors(path / MODEL)[0].keys() == read_safetensors(kept / MODEL)[0].keys()
    assert not list(path.glob("memory-*"))
    assert not (path / REQUIREMENTS).exists()
    assert set() != names(path) < written


def test_a_file_that_is_sound_stays_where_it_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "0001-0123456789abcdef.safetensors"
    write_safetensors(file, {"000000/w": np.ones(2)}, {})
    with monkeypatch.context() as patch:
        too_much = Mock(side_effect=ConfigError(f"file '{file}' cannot be read: it needs too much memory"))
        patch.setattr("fedappeal.simulation.own_models.read_safetensors", too_much)
        with pytest.raises(NotKept):
            FileArrays(file)["w"]
    assert FileArrays(file)["w"].tolist() == [1.0, 1.0]


def test_a_folder_that_workers_do_not_share_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(1, 2, {}, RecordDict(), {})
    elsewhere = stores_of_run(tmp_path / "elsewhere", 1 << 40)(NodeSettings(partition_id=3), context)
    with pytest.raises(NotKept) as error:
        elsewhere.write("own", StoredRecord({}, {"w": np.ones(2)}))
    assert re.fullmatch("file '.*' is not there: .* need a folder that all workers share", str(error.value.__cause__))

    stores_of_run(tmp_path, 1 << 40)(NodeSettings(partition_id=3), context).write(
        "own", StoredRecord({}, {"w": np.ones(2)})
    )
    [file] = (tmp_path / OWN_MODELS).iterdir()
    folder, grid = RunPlan.of(BEST, tmp_path / "run").folder({}), Mock(contexts={1: context})
    memory = SavedMemory(folder, grid, None, 0, Mock(), resumable=False)
    monkeypatch.setattr("fedappeal.simulation.memory._SEEN_WITHIN", 0.0)
    with pytest.raises(ConfigError, match=f"{file.name}' is not there"):
        memory.save(1)
    later = folder.path / OWN_MODELS / file.name
    later.parent.mkdir()
    sleep = Mock(side_effect=lambda _: file.rename(later))  # a network's folder shows it late
    monkeypatch.setattr("fedappeal.simulation.memory._SEEN_WITHIN", 60.0)
    monkeypatch.setattr("fedappeal.simulation.memory.time.sleep", sleep)
    memory.save(1)
    sleep.assert_called_once()


def test_arrays_are_read_late_and_keep_their_order(tmp_path: Path) -> None:
    context = Context(1, 2, {}, RecordDict(), {})
    store = stores_of_run(tmp_path, 1 << 40)(NodeSettings(partition_id=3), context)
    arrays = {"z": np.ones((2, 3), np.float32), "a/b": np.arange(3), "m": np.float64(0.5) * np.ones(())}
    store.write("own", StoredRecord({"round": 4}, arrays))
    assert [type(record).__name__ for record in context.state.values()] == ["ConfigRecord"]
    (file,) = (tmp_path / OWN_MODELS).iterdir()
    assert file.name.startswith("0003-")
    record = store.read("own")
    assert record is not None
    assert isinstance(record.arrays, FileArrays)
    assert (record.values, bool(record.arrays)) == ({"round": 4}, True)
    content = file.read_bytes()
    file.unlink()
    store.write("own-before", record)  # nothing is read
    file.write_bytes(content)
    again = store.read("own-before")
    assert again is not None
    assert [(name, a.tolist(), a.dtype) for name, a in again.arrays.items()] == [
        (name, a.tolist(), a.dtype) for name, a in arrays.items()
    ]
    assert len(again.arrays) == 3


def test_many_large_models_are_under_way_in_groups() -> None:
    small, large = nn.Linear(10, 10), nn.Linear(1024, 1024)
    assert (clients_at_once(small), clients_at_once(large)) == (512, 127)
    with torch.device("meta"):
        assert clients_at_once(nn.Linear(1 << 15, 1 << 15)) == 1
