"""One state of a client: its page, `client status`, its log and its metrics say the same, whatever happens to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from client.fleet.activation import Identity
from client.limits.guard import Guard
from client.limits.limits import LimitReached, Limits, write_limits
from client.limits.rest import Surroundings
from client.outcome import ANSWERED, DECLINED, EVALUATED, JOINED, LEFT, SAT_OUT, Outcome
from client.page.app import page_data
from client.process import serve
from client.process.answer import Answer
from client.process.owner import RETURNED, leave, pause
from client.process.shutdown import GracefulShutdown
from client.process.status import GOES_ON, RunState, State, client_status, describe
from client.settings import Connection, NodeSettings
from client.state.activity import Activity, judged_of
from client.state.memory import RunMemory
from client.state.signs import event_of, note_event, note_training
from client.state.store import DiskStore
from fedappeal.core.requirement import Evaluation, Requirement
from fedappeal.flower.bundle import RunSettings
from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.fleet import MessageDropped, NotConnected
from fedappeal.protocol.keys import DataProblem
from fedappeal.system.locks import only_process

pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
DECISIONS = {"joined": JOINED, "sat out": SAT_OUT, "left": LEFT, "training": JOINED}


def message(kind: str, **config: int | str) -> Message:
    be_sender(run_id=7, node_id=1, task_id=9)
    settings = ConfigRecord({"run-key": "k", **{key.replace("_", "-"): value for key, value in config.items()}})
    return Message(RecordDict({"config": settings}), 3, kind)


def train(do: str, server_round: int = 3) -> Message:
    return message("train", server_round=server_round, do=do)


CALL = message("query", do="call")


@dataclass
class Views:
    """What an owner sees at one moment, in four places."""

    status: Any
    lines: list[str]
    page: Mapping[str, Any]
    metrics: Mapping[str, float]
    log: str


@dataclass
class Served:
    """A client's real loop with a SuperLink that gives what a test says, and an app that does what it is asked.

    Attributes:
        folder: the client's state.
        script: what `receive` gives: messages, errors to raise, functions to call; at its end the views are taken.
    """

    folder: Path
    script: list[Any]
    ended: str | None = None
    reachable: bool = True
    node_id: int = 1
    views: Views | None = None
    log: list[str] = field(default_factory=list)
    shutdown: GracefulShutdown = field(default_factory=GracefulShutdown)

    def run(self) -> Views:
        from fedappeal.views.metrics.client_metrics import ClientMetrics

        self.metrics = ClientMetrics(self.folder)
        node = NodeSettings(state_dir=str(self.folder))
        connection = Connection(superlink="127.0.0.1:9", insecure=True)
        with only_process(self.folder):
            identity = Identity.of(connection)
            serve._Client(node, connection, self.app, identity, None, self.event, self.shutdown, self.alive).serve()
        assert self.views is not None
        return self.views

    def event(self, event: serve.Event) -> None:
        self.log.append(event.text)
        self.metrics.event(event)

    def look(self) -> None:
        if self.views is None:
            metrics = {
                "|".join([sample.name, *sample.labels.values()]): sample.value
                for family in self.metrics.collect()
                for sample in family.samples
            }
            status, log = client_status(self.folder), self.log[-1] if self.log else ""
            self.views = Views(status, describe(self.folder), page_data(self.folder), metrics, log)
        self.shutdown.asked.set()

    def alive(self, seconds: float) -> None:
        if not self.script and client_status(self.folder).state in (State.PAUSED, State.RESTING):
            self.look()

    def app(self, message: Message, context: Context) -> Outcome:
        do = message.content.config_records["config"]["do"]
        server_round = int(message.content.config_records["config"].get("server-round", 0))
        memory = RunMemory(DiskStore(self.folder), "k")
        if do == "look":
            self.look()
        if do == "decline":
            return Outcome(DECLINED, DataProblem.LABELS.text)
        if do == "limit":
            raise LimitReached("this client's max-rounds = 5 a day is reached: ask again tomorrow (UTC)")
        memory.requirement = "requirement-1"
        if do == "left":
            memory.leave(server_round)
        if do == "training":
            note_training(self.folder)
            self.look()
        if do not in DECISIONS:
            return Outcome({"evaluate": EVALUATED}.get(message.metadata.message_type, ANSWERED))
        judged = judged_of(Evaluation(0.5, 0.9), Requirement(0.4), "train", None, "defect")
        return Outcome(DECISIONS[do], judged=judged)

    # -- a SuperLink's answers

    def receive(self, hold: float, waits: Callable[[], bool]) -> Message | None:
        if not self.script:
            self.look()
            return None
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if callable(step):
            return step(self.folder)
        return step

    def run_settings(self, run_id: int) -> RunSettings:
        return RunSettings({"strategy": "maxfl", "task": "digits"}, "0")

    def reply(self, reply: Message, seconds: float) -> None:
        pass

    def come_online_anew(self) -> None:
        raise MessageDropped("too large")

    def end_of(self, run_id: int) -> str | None:
        return self.ended if run_id == 7 else None

    def close(self) -> None:
        pass

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def idle(folder: Path) -> None:
    """Give no message."""


def leaves(folder: Path) -> None:
    """Have the owner leave the run."""
    leave(folder, "k")


def rest(folder: Path) -> None:
    Activity(folder).rested("hours = 22-6")


def come_back(folder: Path) -> None:
    (folder / RETURNED).touch()


def limited(**limits: Any) -> Callable[[Path], None]:
    """Return what sets limits."""
    return lambda folder: write_limits(folder, Limits(**limits))


def moved_too_much(folder: Path) -> None:
    """Use up a day's traffic."""
    write_limits(folder, Limits(max_traffic=1))
    Guard(folder).moved(10**6)


GONE = [NotConnected("the SuperLink at 127.0.0.1:9 does not answer any more")]
NUMBERS = "training loss 0.5000, required below 0.4000: not met; policy defect"


@pytest.mark.parametrize(
    ("script", "prepare", "ended", "state", "run_state", "said", "logged"),
    [
        ([], None, None, "waiting", None, "no run has asked yet", "connected to"),
        ([CALL], None, None, "waiting", "takes-part", "waits for the next message", "roll call: answered"),
        ([train("look")], None, None, "asked", None, "works on round 3, maxfl on digits", "connected to"),
        ([CALL, train("training")], None, None, "training", "takes-part", "trains on round 3", "roll call"),
        ([CALL, train("joined")], None, None, "waiting", "takes-part", "waits for the next message", "joined"),
        ([CALL, train("sat out")], None, None, "waiting", "sat-out", NUMBERS, "sat out (loss 0.500"),
        ([], limited(hours="22-6"), None, "resting", None, "hours = 22-6", "hours = 22-6"),
        ([], limited(mains_only=True), None, "resting", None, "on battery", "on battery"),
        ([], limited(unmetered_only=True), None, "resting", None, "metered", "metered"),
        ([], moved_too_much, None,
         "resting", None, "max-traffic = 1 MB is reached", "max-traffic = 1 MB"),
        ([CALL, train("limit")], None, None, "waiting", "failed", "max-rounds = 5 a day", "max-rounds = 5 a day"),
        ([CALL, train("limit"), rest], None, None, "waiting", "failed", "max-rounds = 5 a day", "max-rounds = 5"),
        ([CALL, train("sat out"), rest], None, None, "waiting", "sat-out", NUMBERS, "sat out (loss 0.500"),
        ([], pause, None, "paused", None, "paused", "paused"),
        ([come_back], None, None, "waiting", None, "no run has asked yet", "dropped: too large"),
        ([CALL, train("joined"), train("left", 6)], None, None, "waiting", "left-by-policy",
         "left for good in round 6", "round 6: left for good"),
        ([CALL, leaves], None, None, "waiting", "left-by-owner",
         "left for good, as its owner said", "roll call: answered"),
        ([message("query", do="decline")], None, None, "waiting", "declined", "declined: ", "declined, "),
        ([CALL, message("evaluate", server_round=3, final=1, do="evaluate")], None, None, "waiting", "over",
         "the run is over", "round 3: evaluated"),
        ([CALL, idle], None, "", "waiting", "ended-early", "ended without a last message", "ended without"),
        ([CALL, idle], None, "stopped", "waiting", "run-stopped", "the run was stopped", "the run was stopped"),
        ([CALL, idle], None, "failed", "waiting", "run-failed", "the run failed", "the run failed"),
        ([CALL, idle], None, "completed", "waiting", "over", "the run is over", "the run is over"),
        ([CALL, train("left", 6), idle], None, "", "waiting", "left-by-policy",
         "left for good in round 6; the run is over", "ended without"),
        ([CALL, *GONE], None, None, "no-superlink", "takes-part", "does not answer since", "does not answer"),
    ],
)  # fmt: skip
def test_page_status_log_and_metrics_agree(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: list[Any],
    prepare: Callable[[Path], object] | None,
    ended: str | None,
    state: str,
    run_state: str | None,
    said: str,
    logged: str,
) -> None:
    around = Surroundings(lambda: datetime(2026, 11, 22, 12), mains=lambda: False, unmetered=lambda: False)
    served = Served(tmp_path, [*script], ended)
    monkeypatch.setattr(serve, "Surroundings", lambda: around)
    monkeypatch.setattr(serve, "FleetConnection", lambda *given: served)
    monkeypatch.setattr(serve, "_LOOK_EVERY", 0.0)
    DiskStore(tmp_path)
    if prepare:
        prepare(tmp_path)
    views = served.run()
    status, page = views.status, views.page
    assert (status.state, page["state"]) == (state, state)
    assert {key for key, value in views.metrics.items() if key.startswith("fedappeal_client_state|") and value} == {
        f"fedappeal_client_state|{state}"
    }
    states = [] if run_state is None else [run_state]
    assert [run.state for run in status.runs] == [run["state"] for run in page["runs"]] == states
    counted = {run: views.metrics[f"fedappeal_client_run_states|{run}"] for run in RunState}
    assert counted == {run: float(run in states) for run in RunState}
    assert [run["can_leave"] for run in page["runs"]] == [run in GOES_ON for run in states]
    lines = "\n".join(views.lines)
    assert said in " ".join([status.line, *(run.line for run in status.runs)])
    assert said in " ".join([page["line"], *(run["line"] for run in page["runs"])])
    assert said.removeprefix("works ").removeprefix("trains ") in lines
    assert logged in views.log
    assert status.latest == page["latest"] == views.log
    assert views.metrics["fedappeal_client_connected"] == (state != "no-superlink")
    assert not (tmp_path / RETURNED).exists(), "it does not try for ever"
    assert client_status(tmp_path).state is State.STOPPED, "the process has let go of its folder"
    assert any(line.startswith("state      not running: last sign of life") for line in describe(tmp_path))


def test_a_client_that_has_not_connected_yet_and_one_that_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_status(tmp_path / "nowhere").state is State.NEVER_STARTED
    served = Served(tmp_path, [])

    def refuse(*given: object) -> None:
        served.look()
        raise NotConnected("nothing listens")

    monkeypatch.setattr(serve, "FleetConnection", refuse)
    assert served.run().page["state"] == State.CONNECTING


def test_an_activity_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    text = """[{"run_key": "k", "strategy": "maxfl", "task": "digits", "first": 1.0, "last": 2.0,
    "done": {"joined": 5},
    "seconds": 1.0, "bytes_up": 1, "bytes_down": 2, "server_round": 5, "served_since": 0, "goodwill": "",
    "judged": {"figure": 0.5, "requirement": 0.4, "of": "loss", "split": "train", "met": false, "bound": "below",
    "spent": 0, "goodwill": null}}]"""
    (tmp_path / "activity.json").write_text(text)
    RunMemory(DiskStore(tmp_path), "k").leave(6)
    (run,) = page_data(tmp_path)["runs"]
    assert (run["state"], run["joined"]) == (RunState.LEFT_BY_POLICY, 5)


def test_a_run_key_that_is_none_names_no_file(tmp_path: Path) -> None:
    DiskStore(tmp_path)
    asked = message("query", run_key=300 * "x", do="call")
    answer = Answer(asked, Outcome(ANSWERED))
    answer.remember(Activity(tmp_path), {"strategy": "maxfl", "task": "digits"}, 1.0)
    assert [run["run"] for run in page_data(tmp_path)["runs"]] == [""]


@pytest.mark.parametrize("moment", ["1e300", "NaN", "Infinity", "-1", "1e18"])
def test_moments_and_keys_that_are_none_are_as_if_never_written(tmp_path: Path, moment: str) -> None:
    run = '{"run_key": "%s", "strategy": "s", "task": "t", "first": %s, "last": 1, "seconds": %s}'
    DiskStore(tmp_path)
    for row in (("k", moment, 1), ("k", 1, "NaN"), (300 * "x", 1, 1), ("../k", 1, 1)):
        (tmp_path / "activity.json").write_text(f"[{run % row}]")
        assert page_data(tmp_path)["runs"] == []
    (tmp_path / "activity.json").write_text(" " * 5_000_000 + f"[{run % ('k', 1, 1)}]")
    assert page_data(tmp_path)["runs"] == []
    (tmp_path / "event.json").write_text(f'{{"text": "x", "at": {moment}, "link": "away", "since": 1}}')
    (tmp_path / "working").write_text(f'{{"what": "x", "since": {moment}}}')
    assert client_status(tmp_path).state is State.NEVER_STARTED


def test_the_longest_event_is_read_again(tmp_path: Path) -> None:
    note_event(tmp_path, "answered", 500 * "\N{GRINNING FACE}")
    event = event_of(tmp_path)
    assert event is not None
    assert len(event.text) == 500
