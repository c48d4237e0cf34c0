"""What fills a run's folder: the columns of a round, when a checkpoint is due, and the memory that goes with it."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord

import server.recorder
from fedappeal.record.folder import KIND, LOCAL, SUBMITTED
from fedappeal.record.lines import CHECKPOINT
from fedappeal.record.reader import Record, rounds_done
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.memory import SavedMemory
from server.build import check_settings, run_plugins
from server.checkpoints import Checkpoint
from server.recorder import NO_MEMORY, ClientMemory, Recorder, measurements
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Hooks, RoundRecord, Setup
from strategies.rounds.rounds import Rounds
from tests.grid import model


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Memory(ClientMemory):
    """Notes what it is asked for; saving takes seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.asked = clock, seconds, list[tuple[str, object]]()

    def restore(self, server_round: int) -> None:
        self.asked.append(("restore", server_round))

    def enrolled(self, server_round: int) -> None:
        self.asked.append(("enrolled", server_round))

    def save(self, server_round: int) -> None:
        self.clock.now += self.seconds
        self.asked.append(("save", server_round))

    def keep_only(self, rounds: Collection[int]) -> None:
        self.asked.append(("keep", rounds))

    def check(self, server_round: int) -> None:
        self.asked.append(("check", server_round))


class Watch(Hooks):
    """Notes the checkpoints."""

    def __init__(self) -> None:
        self.checkpoints: list[int] = []

    def on_checkpoint(self, server_round: int) -> None:
        self.checkpoints.append(server_round)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(server.recorder, "time", made)
    return made


def test_a_simulations_memory_has_each_method_itself() -> None:
    """Those of the base class keep nothing."""
    methods = {name for name in vars(ClientMemory) if not name.startswith("_")}
    assert methods
    assert methods <= vars(SavedMemory).keys()


def recorder(path: Path, memory: ClientMemory, *, rounds: int = 100, durable: bool = False) -> Recorder:
    config, start = RunConfig(rounds=rounds), model(0, 0)
    folder = RunPlan.of(config, path).folder({})
    running = Rounds(check_settings(config).build())
    return Recorder(folder, running, start, rounds, run_plugins(config), Watch(), durable, memory)


def rounds(recorder: Recorder, numbers: range, clock: Clock, seconds: float) -> list[int]:
    """Run rounds of these seconds each; return those after which a checkpoint was written."""
    assert isinstance(recorder.watch, Watch)
    recorder.watch.checkpoints.clear()
    for number in numbers:
        recorder.on_round_start(number)
        clock.now += seconds
        recorder.on_round_end(RoundRecord(number), model(number, 0))
    return list(recorder.watch.checkpoints)


def test_after_two_checkpoints_take_a_twentieth_of_the_time_and_are_a_second_apart(
    tmp_path: Path, clock: Clock
) -> None:
    fast = recorder(tmp_path / "fast", Memory(clock, 0.0))
    assert rounds(fast, range(1, 15), clock, 0.25) == [1, 2, 6, 10, 14]
    slow = recorder(tmp_path / "slow", Memory(clock, 0.5))  # 0.5 s of writing are paid for after 10 s
    assert rounds(slow, range(1, 100), clock, 0.5) == [1, 2, 22, 42, 62, 82]
    assert rounds(slow, range(100, 101), clock, 0.5) == [100], "the last one, whenever it comes"


def test_an_arrival_of_one_who_had_left_says_whether_it_returns(tmp_path: Path) -> None:
    running = recorder(tmp_path, NO_MEMORY)
    running.running.members.left = {"anna", "ben"}
    for name, left in (("anna", False), ("ben", True), ("cleo", False)):
        running.on_enrolled(Member(name, 7, left=left), 3)
    assert [event.get("returned") for event in Record(tmp_path).events if event["event"] == "enrolled"] == [
        True,
        None,
        None,
    ]


def test_a_durable_run_has_one_after_each_round(tmp_path: Path, clock: Clock) -> None:
    assert rounds(recorder(tmp_path, NO_MEMORY, durable=True), range(1, 4), clock, 0.01) == [1, 2, 3]


def test_the_memory_is_saved_before_the_checkpoint_and_dropped_after_it(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, write = Memory(clock, 0.0), Checkpoint.write

    def noted(checkpoint: Checkpoint, *given: Any) -> None:
        memory.asked.append(("checkpoint", checkpoint.server_round))
        write(checkpoint, *given)

    monkeypatch.setattr(Checkpoint, "write", noted)
    rounds(recorder(tmp_path, memory), range(5, 7), clock, 1.0)
    steps = [("save", 5), ("checkpoint", 5), ("keep", [5]), ("save", 6), ("checkpoint", 6), ("keep", [6, 5])]
    assert memory.asked == [("enrolled", 5), *steps]


def test_only_a_round_that_is_over_can_be_saved_later(tmp_path: Path, clock: Clock) -> None:
    one = recorder(tmp_path, Memory(clock, 0.0))
    assert rounds(one, range(1, 5), clock, 0.1) == [1, 2]
    one.save()
    assert rounds_done(tmp_path) == 4
    assert Checkpoint.read(tmp_path / CHECKPOINT).arrays["w"].numpy().tolist() == [4, 0]
    assert rounds(one, range(5, 6), clock, 0.1) == []
    one.on_round_start(6)
    one.save()
    assert rounds_done(tmp_path) == 4, "in round 6 the strategy is not any more as it was after round 5"


def test_a_round_is_a_line_of_columns(tmp_path: Path, clock: Clock) -> None:
    told = {"b": {"loss": 0.5, "accuracy": 0.75, "appealed": 1, "num-examples": 4}, "a": {"accuracy": 1.0}}
    record = RoundRecord(3, measured=told)
    columns = {"client-ids": ["b", "a"], "loss": [0.5, None], "accuracy": [0.75, 1.0], "appealed": [1, None]}
    assert measurements(record, "accuracy") == {"round": 3, **columns}
    one = recorder(tmp_path, NO_MEMORY)
    one.on_round_end(RoundRecord(2), ArrayRecord())
    one.on_round_end(record, ArrayRecord())
    assert Record(tmp_path).measurements == [{"round": 3, **columns}], "round 2 was not evaluated"


def test_a_node_that_is_called_in_vain_is_recorded_ever_less_often(tmp_path: Path) -> None:
    made = recorder(tmp_path / "run", NO_MEMORY)
    for times in range(1, 17):
        made.on_unavailable(7, times, 60.0, "not now")
    lines = Record(tmp_path / "run").events
    assert [line["times"] for line in lines] == [2, 4, 8, 16]
    assert (lines[0]["node"], lines[0]["reason"], lines[0]["seconds"]) == ("7", "not now", 60)


@pytest.mark.parametrize(("kind", "events"), [(SUBMITTED, ["open"]), (LOCAL, [])])
def test_an_open_federation_is_recorded_unless_all_of_it_is_its_users_own(
    tmp_path: Path, kind: str, events: list[str]
) -> None:
    made = recorder(tmp_path / "run", NO_MEMORY)
    made.folder.record(runtime={KIND: kind})
    made.on_open_federation()
    assert [line["event"] for line in Record(tmp_path / "run").events] == events


def test_what_clients_measured_is_written_more_rarely_in_a_run_of_too_many(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.recorder, "MOST_MEASUREMENTS", 8)
    told = {"a": {"loss": 0.5}, "b": {"loss": 0.25}}

    def written(name: str, rounds: int, evaluate_every: int = 1) -> list[int]:
        config, start = RunConfig(rounds=rounds, evaluate_every=evaluate_every), model(0, 0)
        folder = RunPlan.of(config, tmp_path / name).folder({})
        plugins = check_settings(config)
        running = Rounds(plugins.build(), Setup(shared=plugins.shared_settings()))
        one = Recorder(folder, running, start, rounds, plugins, Hooks(), durable=False)
        for number in range(1, rounds + 1):
            evaluated = number % evaluate_every == 0 or number == rounds
            one.on_round_end(RoundRecord(number, measured=told if evaluated else {}), model(number, 0))
        return [line["round"] for line in Record(tmp_path / name).measurements]

    assert written("few", 4) == [1, 2, 3, 4], "8 measurements of 8"
    assert written("more", 10) == [1, 4, 7, 10], "20 of 8: every third round"
    assert written("last", 9) == [1, 4, 7, 9], "and the last"
    assert written("rarely", 30, 3) == [3, 12, 21, 30], "10 evaluated rounds: every third of these"
