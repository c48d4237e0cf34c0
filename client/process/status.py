"""How a client stands, for its owner.

It is one reading of the state folder, for the page, `client status` and metrics.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from client.approval import WHY, asking
from client.outcome import DECLINED, WAITING
from client.process.owner import PAUSED, client_name, departures, store_of
from client.state.activity import ENDED_EARLY, ENDED_LINES, OVER, RUN_FAILED, RUN_STOPPED, Activity, RunActivity
from client.state.preferred import describe_preferred
from client.state.receipts import ReceiptChain
from client.state.signs import AWAY, CONNECTING, event_of, work_of
from client.state.store import DiskStore
from fedappeal.core.requirement import METRIC
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from fedappeal.system.locks import is_held
from fedappeal.system.wording import plural

_RUN = "run-"


class State(StrEnum):
    """State of a client."""

    NEVER_STARTED = "never-started"
    STOPPED = "stopped"
    CONNECTING = "connecting"
    NO_SUPERLINK = "no-superlink"
    PAUSED = "paused"
    RESTING = "resting"
    ASKED = "asked"
    TRAINING = "training"
    WAITING = "waiting"


class RunState(StrEnum):
    """How a client stands in a run."""

    TAKES_PART = "takes-part"
    SAT_OUT = "sat-out"
    FAILED = "failed"
    WAITING = "waiting"
    DECLINED = "declined"
    LEFT_BY_OWNER = "left-by-owner"
    LEFT_BY_POLICY = "left-by-policy"
    OVER = "over"
    RUN_STOPPED = "run-stopped"
    RUN_FAILED = "run-failed"
    ENDED_EARLY = "ended-early"
    DAMAGED = "damaged"


GOES_ON = (RunState.TAKES_PART, RunState.SAT_OUT, RunState.FAILED)
"""States in which a run may ask again."""
_ENDED = {
    RUN_STOPPED: RunState.RUN_STOPPED,
    RUN_FAILED: RunState.RUN_FAILED,
    ENDED_EARLY: RunState.ENDED_EARLY,
}


@dataclass(frozen=True)
class RunStatus:
    """How a client stands in one run.

    Attributes:
        run_key: which run.
        state: how it stands.
        line: the same in words.
        activity: what the client did; None: that is forgotten.
    """

    run_key: str
    state: RunState
    line: str
    activity: RunActivity | None

    @property
    def name(self) -> str:
        """What a person calls the run: strategy, task and when it began."""
        if self.activity is None:
            return "an earlier run"
        return f"{self.activity.what}, {clock_time(self.activity.first)}"


@dataclass(frozen=True)
class ClientStatus:
    """How a client stands.

    Attributes:
        state: how it stands.
        line: the same in words.
        since: since when, in seconds since 1970; 0: not known.
        latest: the log's latest line; empty: none yet.
        runs: the runs that it remembers; that served last at the end.
    """

    state: State
    line: str
    since: float
    latest: str
    runs: tuple[RunStatus, ...]


def client_status(folder: Path) -> ClientStatus:
    """Read how a client stands; a folder that is not there is a client that never started."""
    runs = _runs(folder) if folder.is_dir() else ()
    event = event_of(folder)
    latest = event.text if event else ""

    def status(state: State, line: str, since: float = 0.0) -> ClientStatus:
        return ClientStatus(state, line, since, latest, runs)

    if event is not None and not is_held(folder):
        return status(State.STOPPED, f"not running: last sign of life {clock_time(event.at)}", event.at)
    if (work := work_of(folder)) is not None:
        state, does = (State.TRAINING, "trains") if work.training else (State.ASKED, "works")
        return status(state, f"{does} on {work.what}, since {clock_time(work.since)}", work.since)
    if (folder / PAUSED).exists():
        return status(State.PAUSED, "paused: nothing is worked on")
    if event is not None and event.link == AWAY:
        since = clock_time(event.since)
        return status(State.NO_SUPERLINK, f"the SuperLink does not answer since {since}", event.since)
    if event is not None and event.link == CONNECTING:
        return status(State.CONNECTING, f"connecting since {clock_time(event.since)}", event.since)
    if event is not None and event.resting:
        return status(State.RESTING, f"resting: {event.resting}")
    if event is None and not is_held(folder):
        return status(State.NEVER_STARTED, "not running: it never started")
    return status(State.WAITING, _waits_for(runs), event.since if event else 0.0)


def clock_time(seconds: float) -> str:
    """Return a moment in local time, in the one form in which a client's commands and page show it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _waits_for(runs: tuple[RunStatus, ...]) -> str:
    if not runs:
        return "waits: no run has asked yet"
    latest = runs[-1]
    since = f"; no message since {clock_time(latest.activity.last)}" if latest.activity else ""
    if latest.state in GOES_ON:
        return f"waits for the next message of {latest.name}{since}"
    return f"waits for another run; {latest.name}: {latest.line}{since}"


def _runs(folder: Path) -> tuple[RunStatus, ...]:
    store, activity = DiskStore(folder), Activity(folder).runs()
    departed, asked = departures(store), asking(folder)
    forgotten = [key for key in store.keys(_RUN) if key not in activity]
    runs = (*forgotten, *activity)
    return tuple(_run(store, key, key in departed, activity.get(key), asked.get(key)) for key in runs)


def _run(
    store: DiskStore, run_key: str, departed: bool, activity: RunActivity | None, asked: tuple[bool, str] | None
) -> RunStatus:
    def status(state: RunState, line: str) -> RunStatus:
        return RunStatus(run_key, state, line, activity)

    ended = activity.ended if activity else ""
    over = "; the run is over" if ended else ""
    try:
        record = store.look(_RUN + run_key) if run_key else None
        left_round = int(record.values["left-round"]) if record else 0
    except (ConfigError, KeyError, ValueError) as error:
        return status(RunState.DAMAGED, f"the client takes no part in this run ({error})")
    if departed:
        return status(RunState.LEFT_BY_OWNER, f"left for good, as its owner said{over}")
    if left_round:
        return status(RunState.LEFT_BY_POLICY, f"left for good in round {left_round}{over}")
    decided = activity.latest_answer if activity else None
    step = f"round {decided.server_round}" if decided and decided.server_round else "the roll call"
    if ended == OVER:
        return status(RunState.OVER, ENDED_LINES[OVER])
    if asked and not asked[0] and decided and decided.what in (WAITING, DECLINED) and not ended:
        return status(RunState.WAITING, f"{WHY[keys.WAITING]}: {asked[1]}")
    if asked and asked[0] and decided and decided.what in (WAITING, DECLINED):
        decided = None
    if decided and decided.what == "declined":
        return status(RunState.DECLINED, f"declined: {decided.why}{over}")
    if ended in _ENDED:
        return status(_ENDED[ended], ENDED_LINES[ended])
    if decided and decided.what in ("sat out", "failed"):
        state = RunState.SAT_OUT if decided.what == "sat out" else RunState.FAILED
        return status(state, f"takes part; {decided.what} in {step}: {decided.why}")
    return status(RunState.TAKES_PART, "takes part")


def describe(folder: Path) -> list[str]:
    """Return what a client remembers, a line a thing.

    Raises:
        ConfigError: if there is no state in the folder.
    """
    store, status = store_of(folder), client_status(folder)
    lines = [f"client     {client_name(store)} ({folder})"]
    paused = (folder / PAUSED).exists()
    lines.append("paused     yes: `fedappeal client resume` ends it" if paused else "paused     no")
    if status.state in (State.ASKED, State.TRAINING):
        lines.append(f"working    {status.line.partition(' ')[2]}")
    elif status.state is State.RESTING:
        lines.append(f"resting    {status.line.partition(' ')[2]}")
    elif status.state not in (State.NEVER_STARTED, State.PAUSED):
        lines.append(f"state      {status.line}")
    lines += [f"latest     {status.latest}"] if status.latest else []
    lines += [line for name in store.names() if name.startswith("requirement-") for line in _requires(store, name)]
    for run in sorted(status.runs, key=lambda run: run.run_key):
        if run.state is RunState.DAMAGED:
            lines.append(f"damaged    {_RUN}{run.run_key}: {run.line}; `fedappeal client reset` puts it aside")
        elif _RUN + run.run_key in store.names() or (run.activity and run.activity.decisions):
            lines.append(f"run        {run.run_key or '(no key)'}: {run.line}")
            lines += [f"{'':11}{line}" for line in (run.activity.lines() if run.activity else ())]
    return lines + describe_preferred(store)


def receipt_lines(kept: ReceiptChain) -> list[str]:
    """Return the receipts, three lines each, and how many there are."""
    lines = []
    for line in kept.receipts:
        arrived = "" if line["sent"] else ", not known to have arrived"
        step = f"round {line['round']}" if line.get("round") else "roll call"
        did = f"run {line.get('run')}, {step}, {line.get('kind')}: {line.get('decision')}"
        lines += [
            f"{line.get('number')}  {clock_time(line.get('time', 0.0))}  {did}, {line.get('bytes')} bytes{arrived}",
            f"{'':4}told: {told_line(line)}",
            f"{'':4}SHA-256 {line.get('hash')}; of the model that came: {line.get('model') or 'there was none'}",
        ]
    return [*lines, f"{plural(len(kept.receipts), 'receipt')}: {kept.problem or 'none was changed or is missing'}"]


def told_line(receipt: Mapping[str, Any]) -> str:
    """Return what a reply told, each figure by its name."""
    return ", ".join(f"{name} {value}" for name, value in receipt.get("told", {}).items()) or "nothing"


def _requires(store: DiskStore, name: str) -> list[str]:
    """Return a requirement's line; none where it is not there any more."""
    try:
        if (record := store.look(name)) is None:
            return []
        rho, score = float(record.values["rho"]), float(record.values["solo-score"])
        by_metric = record.values["of"] == METRIC
    except (ConfigError, KeyError, ValueError) as error:
        return [f"damaged    {name}: the client makes it again for the next run that needs it ({error})"]
    kind = "a model of its own" if record.arrays else "a fixed number"
    alone = f"; the task's metric alone, on test data: {score:.4f}" if record.arrays and math.isfinite(score) else ""
    requirement = f"the task's metric at {rho:.4f} or better" if by_metric else f"a loss below {rho:.4f}"
    return [f"requires   {requirement} (from {kind}{alone})"]
