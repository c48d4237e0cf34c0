"""Promise: no message takes more of a volunteer's device than its owner allows, and none ends the client."""

import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from client.limits.answer_book import ANSWERS
from client.limits.guard import Deadline, memory_held
from client.limits.limits import LimitReached, Limits, write_limits
from client.state.memory import RunMemory
from client.state.store import DiskStore
from fedappeal.protocol import keys
from fedappeal.settings.config import RunConfig, Scalar
from tests.node import Node, changed, run_config

CONFIG = run_config(task="digits", strategy="fedavg", clients=4, local_steps=4, learning_rate=0.1)
MEGABYTE = 10**6


def refused(node: Node, kind: str, match: str, **told: Scalar) -> None:
    """Check that a question is refused within a second (three are allowed) and 100 MB."""
    if kind != "query":
        node("query")  # loads the data and warms up
    before, since = memory_held(), time.monotonic()
    with pytest.raises(LimitReached, match=match):
        node(kind, told={key.replace("__", "."): value for key, value in told.items()}, server_round=1, mandatory=1)
    assert time.monotonic() - since < 3.0
    assert memory_held() - before < 100 * MEGABYTE


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("train", {"local-steps": 10**9}),
        ("train", {"local-steps": 0, "local-epochs": 10**9}),
        ("train", {"local-steps": 10**9, "batch-size": 10**9}),
        ("evaluate", {"tuning-steps": 10**9}),
    ],
)
def test_steps_without_end_are_refused_before_they_are_drawn(
    tmp_path: Path, kind: str, told: dict[str, Scalar]
) -> None:
    """They took 256 GB of minibatches first."""
    refused(Node(CONFIG, tmp_path), kind, "max-steps = 10000", **told)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("query", {"requirement": "solo", "solo.steps": 10**9}),
        ("train", {"strategy": "maxfl", "maxfl.tuning-steps": 10**9}),
        ("query", {"strategy": "pfedme", "pfedme.moreau-steps": 10**9}),
        ("evaluate", {"strategy": "perfedavg", "perfedavg.adaptation-steps": 10**9}),
        ("query", {"strategy": "adagd", "adagd.gradient-steps": 10**9, "adagd.gradient-batch": 16}),
    ],
)
def test_steps_that_hide_in_a_runs_settings_are_refused_too(
    tmp_path: Path, kind: str, settings: dict[str, Scalar]
) -> None:
    config = RunConfig.parse({**CONFIG.as_config(), **settings})
    refused(Node(config, tmp_path), kind, "gradients is not allowed: this client's max-steps = 10000")


def test_the_largest_batch_is_all_examples(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path)
    before = memory_held()
    answer = node("train", told={"batch-size": 10**9, "local-steps": 2}, mandatory=1)
    assert keys.ARRAYS in answer
    assert memory_held() - before < 100 * MEGABYTE


@pytest.mark.parametrize(
    ("told", "limit"),
    [({"batch-size": 1, "local-steps": 1}, "min-batch = 8"), ({"local-steps": 3}, "min-steps = 4")],
)
def test_an_update_of_a_single_image_is_not_sent(tmp_path: Path, told: dict[str, Scalar], limit: str) -> None:
    """From ``batch-size = 1, local-steps = 1`` images were read off the update."""
    refused(Node(CONFIG, tmp_path, limits="min-steps=4"), "train", limit, **told)


def test_a_gradient_of_a_single_image_is_not_sent(tmp_path: Path) -> None:
    config = changed(CONFIG, strategy="adagd", adagd__gradient_batch=1)
    node, line = Node(config, tmp_path), "a batch of 1 is not allowed: this client's min-batch = 8"
    refused(node, "query", line)
    with pytest.raises(LimitReached, match=line):  # of a server that calls no roll
        node("train", server_round=1, mandatory=1)


def test_a_roll_call_that_tells_a_book_is_refused(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path)
    refused(node, "query", "beside its models", plugins="strategy\tmine:Mine\tx\n" * 5000)
    refused(node, "query", "more than 100 plug-ins", plugins="strategy\tm\tx\n" * 200)
    refused(node, "train", "beside its models", maxfl__server_lr="9" * 100_000)


def test_training_stops_at_its_deadline_and_the_client_goes_on(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path, limits="max-steps=0")
    node("query")
    write_limits(tmp_path, Limits(max_seconds=0.5))  # of a client that runs
    since = time.monotonic()
    with pytest.raises(LimitReached, match=r"longer than this client's max-seconds = 0\.5"):
        node("train", local_steps=10**9, mandatory=1)
    assert time.monotonic() - since < 3.0
    write_limits(tmp_path, Limits())
    assert keys.ARRAYS in node("train", server_round=2, mandatory=1)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_deadline_is_the_messages_or_the_owners_whichever_comes_first() -> None:
    now, none = time.monotonic(), Limits.off()
    assert Deadline.of(60.0, 60.0, none).until - now == pytest.approx(59.0, abs=1.0)  # a second for the way back
    assert Deadline.of(10.0, 10.0, none).until - now == pytest.approx(9.0, abs=0.4)
    assert Deadline.of(1e9, 1e9, Limits(max_seconds=20.0)).until - now == pytest.approx(20.0, abs=1.0)
    clock = Clock()
    deadline = Deadline(101.0, "too late", clock=clock)
    deadline.check()
    clock.now = 101.0
    with pytest.raises(LimitReached, match=r"^too late$"):
        deadline.check()


def test_memory_is_looked_at_once_a_second() -> None:
    clock, held = Clock(), [0]
    looks = []

    def look() -> int:
        looks.append(clock.now)
        return held[0]

    deadline = Deadline(1000.0, "too late", max_memory=5e6, clock=clock, held=look)
    for _ in range(20):
        deadline.check()
        clock.now += 0.125
    assert looks == [100.0, 101.0, 102.0]
    held[0] = 5_000_001
    clock.now += 1.0
    with pytest.raises(LimitReached, match="max-memory = 5 MB"):
        deadline.check()


def test_a_client_that_holds_more_than_its_owner_allows_declines(tmp_path: Path) -> None:
    node = Node(CONFIG, tmp_path, limits="max-memory=40")
    node("query")
    held = bytearray(100 * MEGABYTE)
    refused(node, "query", "max-memory = 40 MB")
    assert len(held) == 100 * MEGABYTE


def roll_calls(folder: Path, count: int, **limits: Scalar) -> None:
    """Call the roll for many runs, each with a model of its own."""
    write_limits(folder, Limits.parse({key.replace("_", "-"): value for key, value in limits.items()}))
    node = Node(changed(CONFIG, strategy="scaffold", solo__steps=1), folder)
    for number in range(count):
        model = {name: array + np.float32(0.001 * number) for name, array in node.initial.items()}
        node("query", model, run_key=f"run{number}")
        control = {name: np.zeros_like(array) for name, array in node.initial.items()}
        told = {keys.RUN_KEY: f"run{number}", "scaffold.control-round": 0}
        node("train", model, told, {"control": node.layout.pack(control)}, server_round=1, mandatory=1)


def test_roll_calls_with_new_models_do_not_fill_the_disk_and_a_run_that_was_left_stays_left(tmp_path: Path) -> None:
    """30 of them left 63 files, and more came with each."""
    RunMemory(DiskStore(tmp_path), "left").leave(3)
    roll_calls(tmp_path, 23)
    names = DiskStore(tmp_path).names()
    assert sum(name.startswith("run-run") for name in names) == 20
    assert sum(name.startswith("control-") for name in names) == 20
    assert sum(name.startswith("requirement-") for name in names) == 20
    assert {"run-run22", "control-run22", "run-run3"} <= set(names)
    assert "identity" in names
    answer = Node(CONFIG, tmp_path).metrics("train", None, {keys.RUN_KEY: "left"}, server_round=4)
    assert answer[keys.DECISION] == -1


def test_the_state_stays_below_its_bytes_and_the_run_that_is_served_stays(tmp_path: Path) -> None:
    roll_calls(tmp_path, 6, max_state=0.25)  # a run takes about 34 KB
    store = DiskStore(tmp_path)
    assert sum(store.path(name).stat().st_size for name in store.names()) < 250_000
    assert store.read("run-run5") is not None
    assert store.read("run-run0") is None
    model = Node(CONFIG, tmp_path / "other", limits="max-state=0.01")
    refused(model, "query", r"more room than this client's max-state = 0\.01 MB leaves", run_key="b")


def test_a_days_runs_are_counted(tmp_path: Path) -> None:
    """Each costs a warm-up."""
    with pytest.raises(LimitReached, match="max-runs = 3 a day is reached"):
        roll_calls(tmp_path, 4, max_runs=3)
    assert DiskStore(tmp_path).read("run-run3") is None


def test_limits_without_a_state_folder_are_kept_without_a_count(tmp_path: Path) -> None:
    """As under a stock SuperNode; and a client whose limits count nothing keeps no count."""
    refused(Node(CONFIG, limits="max-runs=1 max-steps=1000"), "train", "max-steps = 1000", **{"local-steps": 10**9})
    Node(CONFIG, tmp_path, limits="max-steps=1000 max-runs=0 max-rounds=0 max-evaluations=0")("query")
    assert not (tmp_path / ANSWERS).exists()


def test_an_array_that_says_it_is_huge_is_refused(tmp_path: Path) -> None:
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**15},), }}".ljust(117).encode() + b"\n"
    lie = ArrayRecord({"flat": Array("float32", (10**15,), "numpy.ndarray", head + text)})
    with pytest.raises(ValueError, match="has 0 bytes"):
        Node(CONFIG, tmp_path)("train", lie)
