"""What a client's owner can do: look, rest, come back."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from client.approval import approve, asking
from client.limits import guard
from client.limits.guard import Guard
from client.limits.privacy import noise_key
from client.limits.rest import Rest, Surroundings
from client.process.owner import PAUSED, leave, pause, reset, resume
from client.process.status import State, client_status, describe
from client.settings import NodeSettings
from client.state import activity, store
from client.state.activity import Activity, Judged
from client.state.memory import PERSONAL, RunMemory, client_identity
from client.state.signs import EVENT, RESTS, note_event
from client.state.store import DiskStore
from fedappeal.core.local_rule import StoredRecord
from fedappeal.settings.config import ConfigError
from fedappeal.system.locks import only_process
from tests.client.test_approval import Client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = DiskStore(tmp_path)
    store.write("identity", StoredRecord({"client-id": "anna"}))
    store.write("requirement-1", StoredRecord({"rho": 0.12345, "of": "loss", "solo-score": 0.875}, {"w": np.ones(2)}))
    store.write("requirement-2", StoredRecord({"rho": 0.5, "of": "loss", "solo-score": float("nan")}))
    store.write("requirement-3", StoredRecord({"rho": 0.7, "of": "metric", "solo-score": float("nan")}))
    store.write("run-abc", StoredRecord({"requirement": "requirement-1", "left-round": 4}))
    store.write("run-def", StoredRecord({"requirement": "requirement-2", "left-round": 0}))
    store.write("preferred", StoredRecord({"which": "solo", "run-key": "abc"}, {"w": np.ones(2)}))
    return tmp_path


def test_status_lists_what_the_client_remembers(folder: Path) -> None:
    assert describe(folder) == [
        f"client     anna ({folder})",
        "paused     no",
        "requires   a loss below 0.1235 (from a model of its own; the task's metric alone, on test data: 0.8750)",
        "requires   a loss below 0.5000 (from a fixed number)",
        "requires   the task's metric at 0.7000 or better (from a fixed number)",
        "run        abc: left for good in round 4",
        "run        def: takes part",
        f"prefers    the solo model (run abc): {folder / 'preferred.safetensors'}",
    ]


def test_status_says_what_was_done_in_each_run(folder: Path) -> None:
    activity = Activity(folder)
    run = {"strategy": "maxfl", "task": "digits"}
    activity.answered("def", run, done="joined", server_round=3, judged=Judged(0.25, 0.5, "loss", "train", True))
    activity.answered("gone", run)
    lines = describe(folder)
    assert lines[5] == "run        abc: left for good in round 4"
    assert lines[6] == "run        def: takes part"
    assert lines[7].startswith(f"{'':11}maxfl on digits, 20")
    assert lines[8:10] == [
        f"{'':11}joined 1 round, sat out 0; 0.0 s of work; 0.0 MB up, 0.0 MB down",
        f"{'':11}round 3: training loss 0.2500, required below 0.5000: met",
    ]
    assert lines[10].strip() == "the model serves you since round 3"
    assert lines[11].startswith("prefers")
    reset(folder)
    assert list(activity.runs()) == ["def", "gone"]
    reset(folder, forget=True)
    assert activity.runs() == {}


def test_a_pause_lasts_until_it_is_ended(folder: Path) -> None:
    before = DiskStore(folder).names()
    pause(folder)
    pause(folder)
    assert (folder / PAUSED).exists()
    assert describe(folder)[1].startswith("paused     yes")
    assert DiskStore(folder).names() == before
    reset(folder)
    assert not (folder / PAUSED).exists()


def test_reset_brings_back_a_client_that_left_and_keeps_the_rest(folder: Path) -> None:
    assert "1 run can" in reset(folder)
    store = DiskStore(folder)
    run = store.read("run-abc")
    assert run is not None
    assert dict(run.values) == {"requirement": "requirement-1", "left-round": 0, "goodwill-spent": ""}
    assert store.names() == [
        "identity",
        "preferred",
        "requirement-1",
        "requirement-2",
        "requirement-3",
        "run-abc",
        "run-def",
    ]
    assert "0 runs can" in reset(folder)


def test_reset_can_forget_all_but_the_id(folder: Path) -> None:
    store = DiskStore(folder)
    store.write("control-abc", StoredRecord({"round": 3}, {"before/w": np.ones(2), "after/w": np.ones(2)}))
    store.write("noise-key", StoredRecord({"key": "secret"}))
    reset(folder)
    assert store.read("control-abc") is not None
    assert "the client-id and the noise key stay" in reset(folder, forget=True)
    assert store.names() == ["identity", "noise-key"]
    key = store.read("noise-key")
    assert key is not None
    assert key.values["key"] == "secret"
    assert describe(folder) == [f"client     anna ({folder})", "paused     no"]


def test_a_folder_without_a_client_is_one_line(tmp_path: Path) -> None:
    for command in (describe, pause, reset):
        with pytest.raises(ConfigError, match="no client has kept state there"):
            command(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_an_owner_leaves_a_run_for_good_and_can_take_it_back(folder: Path) -> None:
    store = DiskStore(folder)
    assert not RunMemory(store, "def").has_left(1)
    assert leave(folder, "def") == "1 run left for good (def); `fedappeal client reset` takes that back"
    assert RunMemory(store, "def").has_left(1), "a running client reads it with its next message"
    assert "run        def: left for good, as its owner said" in describe(folder)
    RunMemory(store, "def").requirement = "requirement-1"
    assert RunMemory(store, "def").has_left(1), "what the client writes meanwhile changes nothing"
    assert reset(folder).startswith("back: not paused, 2 runs can be joined again")
    assert not RunMemory(store, "def").has_left(1)
    assert leave(folder, None).startswith("2 runs left for good (abc, def)")


def test_leaving_all_runs_counts_those_that_go_on_and_leaves_those_that_may_be_continued(folder: Path) -> None:
    activity = Activity(folder)
    for key in ("abc", "def"):
        activity.answered(key, {}, done="joined", server_round=1)
    activity.end("def", "stopped")
    assert leave(folder, None).startswith("1 run left for good (abc); ")
    assert all(RunMemory(DiskStore(folder), key).has_left(1) for key in ("abc", "def"))
    activity.end("abc", "over")
    assert leave(folder, None).startswith("0 runs left for good (none that goes on); ")
    assert leave(folder, "def").startswith("1 run left for good (def); ")


def test_a_run_that_is_not_there_cannot_be_left(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"run = 'xyz' is not allowed: .* \(abc, def\)"):
        leave(folder, "xyz")


def test_status_says_for_which_limit_it_rests(folder: Path) -> None:
    with only_process(folder):
        note_event(folder, "connected", "connected")
        note_event(folder, "paused", "paused: hours = 22-6")
        assert describe(folder)[2] == "resting    hours = 22-6"
        note_event(folder, "resumed", "resumed")
        assert describe(folder)[2].startswith("state      waits")
    assert describe(folder)[2].startswith("state      not running")


def test_after_a_pause_status_says_at_once_that_it_waits(folder: Path) -> None:
    with only_process(folder):
        note_event(folder, "connected", "connected")
        pause(folder)
        note_event(folder, "paused", RESTS + Rest(folder / PAUSED, Guard(folder), Surroundings()).why())
        assert client_status(folder).state is State.PAUSED
        resume(folder)
        assert client_status(folder).state is State.WAITING


def test_a_full_disk_does_not_make_a_rest_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    with only_process(folder):
        note_event(folder, "connected", "connected")
        with monkeypatch.context() as patch:
            patch.setattr("client.state.signs.replace_file", full)
            note_event(folder, "paused", "paused: hours = 22-6")
            assert client_status(folder).latest == "connected", "an event that is no rest stays"
        note_event(folder, "paused", "paused: hours = 22-6")
        assert (folder / EVENT).stat().st_mode & 0o777 == 0o600
        with monkeypatch.context() as patch:
            patch.setattr("client.state.signs.replace_file", full)
            note_event(folder, "resumed", "resumed")
            assert client_status(folder).state is State.WAITING


Act = Callable[[Path], object]
GOES_ON = {"strategy": "maxfl", "task": "digits"}


def memory(folder: Path) -> RunMemory:
    return RunMemory(DiskStore(folder), "abc")


def asked_before(folder: Path) -> None:
    Client(folder).called()


def asks(folder: Path) -> None:
    Client(folder, run=8).called(**{"run-key": "again"})


def asked_and_approved(folder: Path) -> bool:
    return asking(folder).get("7") == asking(folder).get("again") and asking(folder)["again"][0]


def left(folder: Path) -> None:
    leave(folder, "abc")
    (folder / "departure-abc.safetensors").unlink()  # its copy is there


def makes_room(folder: Path) -> None:
    guard.Guard(folder).make_room(DiskStore(folder), "new", ArrayRecord())


def kept_before(folder: Path) -> None:
    memory(folder).keep(PERSONAL, 1, {"w": np.ones(2)})


def answered(folder: Path) -> None:
    Activity(folder).answered("abc", GOES_ON, done="joined", decided=("joined", "it appeals"))


def forgotten(folder: Path) -> bool:
    return not Activity(folder).runs() and DiskStore(folder).names() == ["identity"]


def erase(folder: Path) -> None:
    reset(folder, forget=True)


def identity(folder: Path) -> str:
    return client_identity(NodeSettings(), DiskStore(folder))


@pytest.mark.parametrize(
    ("before", "at", "first", "meanwhile", "holds"),
    [
        (asked_before, (DiskStore, "write"), asks, lambda f: approve(f, "7"), asked_and_approved),
        (asked_before, (DiskStore, "write"), lambda f: approve(f, "7"), asks, asked_and_approved),
        (
            lambda f: None,
            (DiskStore, "write"),
            lambda f: memory(f).pay(4, "model"),
            reset,
            lambda f: not memory(f).has_left(9) and memory(f).goodwill_spent == 1,
        ),
        (
            lambda f: None,
            (DiskStore, "write"),
            reset,
            lambda f: memory(f).pay(4, "model"),
            lambda f: not memory(f).has_left(9) and memory(f).goodwill_spent == 1,
        ),
        (
            lambda f: memory(f).pay(4, "model"),
            (DiskStore, "write"),
            lambda f: memory(f).pay(5, "model"),
            lambda f: memory(f).pay(6, "model"),
            lambda f: memory(f).goodwill_spent == 3,
        ),
        (left, (store, "_readable"), lambda f: memory(f).has_left(9), reset, lambda f: not memory(f).has_left(9)),
        (
            lambda f: None,
            (DiskStore, "write"),
            makes_room,
            reset,
            lambda f: not memory(f).has_left(9),
        ),
        (
            kept_before,
            (DiskStore, "write"),
            lambda f: memory(f).keep(PERSONAL, 2, {"w": np.ones(2)}),
            erase,
            forgotten,
        ),
        (lambda f: None, (DiskStore, "write"), lambda f: leave(f, "abc"), erase, forgotten),
        (answered, (activity, "replace_file"), answered, erase, forgotten),
        (answered, (activity, "replace_file"), lambda f: Activity(f).rested("paused"), erase, forgotten),
        (answered, (activity, "replace_file"), lambda f: Activity(f).end("abc", "over"), erase, forgotten),
        (
            lambda f: DiskStore(f).delete("identity"),
            (DiskStore, "write"),
            identity,
            lambda f: (f / "other").write_text(identity(f)),
            lambda f: (f / "other").read_text() == identity(f),
        ),
        (
            lambda f: None,
            (DiskStore, "write"),
            lambda f: noise_key(DiskStore(f)),
            lambda f: (f / "other").write_text(noise_key(DiskStore(f))),
            lambda f: (f / "other").read_text() == noise_key(DiskStore(f)),
        ),
        (
            lambda f: DiskStore(f).path("solo-def").write_bytes(b"damaged"),
            (store, "set_aside"),
            lambda f: DiskStore(f).read("solo-def"),
            lambda f: DiskStore(f).write("solo-def", StoredRecord({"round": 1})),
            lambda f: DiskStore(f).look("solo-def") is not None,
        ),
    ],
    ids=[
        "asks and is approved",
        "is approved and asks",
        "pays and is reset",
        "is reset and pays",
        "pays twice",
        "looks whether it left and is reset",
        "makes room and is reset",
        "keeps a model and is erased",
        "is left and erased",
        "answers and is erased",
        "rests and is erased",
        "ends and is erased",
        "two make an id",
        "two make a noise key",
        "finds damage and another writes",
    ],
)
def test_what_a_client_and_its_owner_change_at_once_holds(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Act,
    at: tuple[object, str],
    first: Act,
    meanwhile: Act,
    holds: Act,
) -> None:
    monkeypatch.setattr(guard, "KEPT_RUNS", 0)
    before(folder)
    changes, other = getattr(*at), threading.Thread(target=meanwhile, args=[folder])

    def changed(*arguments: object, **named: object) -> object:
        if not other.ident:
            other.start()
            other.join(0.3)
        return changes(*arguments, **named)

    monkeypatch.setattr(*at, changed)
    first(folder)
    other.join()
    assert holds(folder)
