"""The long-lived client process: one volunteer that stays connected and answers what it is asked.

torch, the data and the device stay loaded between rounds, and the code that runs is the code installed here: of a
run's bundle it takes the settings only.
"""

import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Message, RecordDict

from client.fleet.activation import Identity
from client.fleet.connection import KEPT_RUNS, FleetConnection
from client.fleet.traffic import Traffic, poll_wait, retry_wait
from client.limits.guard import Guard
from client.limits.limits import MEGABYTE, Limits
from client.limits.rest import Rest, Surroundings, check_surroundings
from client.outcome import FAILED, Outcome
from client.process.answer import Answer, reason_of, round_of, task_of
from client.process.owner import PAUSED, RETURNED, key_name
from client.process.shutdown import GracefulShutdown
from client.settings import Connection, NodeSettings
from client.state.activity import ENDED_AS, ENDED_EARLY, ENDED_LINES, Activity, run_of
from client.state.own_key import note_connection
from client.state.receipts import Receipts
from client.state.signs import RESTS, forget_work, note_event, working
from client.state.store import DiskStore, tidy
from fedappeal.core.local_rule import StoredRecord
from fedappeal.flower.bundle import RunSettings
from fedappeal.flower.messages import error_reply, set_times
from fedappeal.flower.node.fleet import LONGEST_HOLD, MessageDropped, MessageRefused, NodeForgotten, NotConnected
from fedappeal.flower.node.objects import Parcel
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError
from fedappeal.system.clock import CLOCK
from fedappeal.system.json_log import JsonFormat, print_log
from fedappeal.system.locks import InUse, only_process
from fedappeal.system.tuning import give_back_memory

_LOOK_EVERY = 20.0
"""Seconds without a message, or since the last question, after which it is asked whether runs have ended."""
_HELD = 5.0
"""Seconds after which an empty answer to a poll was held by the SuperLink."""

T = TypeVar("T")
LOGGER = logging.getLogger("fedappeal.client")


@dataclass(frozen=True)
class Event:
    """Something that happened in a client process, for its owner to see.

    Attributes:
        kind: ``connected``, ``waiting`` (for the SuperLink), ``answered``, ``failed`` (an error reply), ``dropped``,
            ``paused`` (or resting for a limit), ``resumed``, ``run-ended``, ``ended`` or
            ``given-up``.
        text: one line for a person.
        run: Flower's number of the run; None: of none.
        round: the round; None: of none.
        client: the client-id; None: not known.
    """

    kind: str
    text: str
    run: int | None = None
    round: int | None = None
    client: str | None = None


OnEvent = Callable[[Event], None]
Alive = Callable[[float], None]
Begin = Callable[[RunSettings], None]


def _log(event: Event) -> None:
    if event.kind == "given-up" and not any(isinstance(handler.formatter, JsonFormat) for handler in LOGGER.handlers):
        print(f"fedappeal: {event.text}", file=sys.stderr)
        return
    problem = event.kind in ("waiting", "failed", "dropped", "given-up")
    facts = {"event": event.kind, "run": event.run, "round": event.round, "client": event.client}
    LOGGER.log(logging.WARNING if problem else logging.INFO, event.text, extra=facts)


def run_client(
    node: NodeSettings,
    connection: Connection,
    answer: Callable[[Message, Context], Outcome],
    *,
    connect_timeout: float | None = None,
    on_event: OnEvent = _log,
    watch: OnEvent = lambda event: None,
    alive: Alive = lambda seconds: None,
    begin: Begin | None = None,
    log_as_json: bool = False,
) -> int:
    """Serve as one client until SIGTERM or SIGINT.

    Args:
        node: the client's own settings; packages that they do not allow are not.
        connection: how to reach the SuperLink.
        answer: answers messages; an exception of it becomes an error reply, and the client keeps serving.
        connect_timeout: seconds to try for a first connection; None: for ever. A lost one is tried again for ever.
        on_event: told of everything that happens; by default it goes to the logger ``fedappeal.client``, and that to
            standard output.
        watch: told of the same, besides.
        alive: called while all is well; the next call comes within that many seconds.
        begin: told what a run's bundle says before each message of the run is answered; None: nothing is told.
        log_as_json: whether that logger prints JSON lines.

    Returns:
        0 after a signal; 2 where the state folder is in use, the key is unfit or no connection was made in time.
    """
    if on_event is _log:
        plain = logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")
        print_log(LOGGER, JsonFormat() if log_as_json else plain, sys.stdout)

    def tell(event: Event) -> None:
        on_event(event)
        watch(event)

    try:
        identity = Identity.of(connection)
        if node.allow is None:
            node = node.model_copy(update={"allow": ""})
        if not identity.made_here and not node.client_id:
            node = node.model_copy(update={"client_id": identity.client_id})
        folder = node.state_folder
        with only_process(folder) if folder else nullcontext(), GracefulShutdown() as shutdown:
            if folder:
                tidy(folder)
            return _Client(node, connection, answer, identity, connect_timeout, tell, shutdown, alive, begin).serve()
    except InUse as error:
        hint = f"another client (process {error.process}): stop it, or give another folder"
        tell(Event("given-up", f"state-dir = '{node.state_dir}' is in use by {hint}"))
        return 2
    except (ValueError, OSError) as error:  # OSError: a full disk, a folder that cannot be written
        tell(Event("given-up", printable(error)))
        return 2


class _GivenUp(RuntimeError):
    pass


@dataclass
class _Client:
    node: NodeSettings
    connection: Connection
    answer: Callable[[Message, Context], Outcome]
    identity: Identity
    connect_timeout: float | None
    on_event: OnEvent
    shutdown: GracefulShutdown
    alive: Alive = lambda seconds: None
    begin: Begin | None = None

    def __post_init__(self) -> None:
        self._states: dict[int, RecordDict] = {}
        folder = self.node.state_folder
        self._store = DiskStore(folder) if folder else None
        if self._store and self.node.client_id:
            # For its owner to see, and to remain this client after a new key.
            name = {"name": key_name(self.connection.key)} if self.connection.key else {}
            self._store.write("identity", StoredRecord({"client-id": self.node.client_id, **name}))
        self._folder = folder
        self._returned = (folder or Path(os.devnull)) / RETURNED
        forget_work(folder)
        note_event(folder, "started", "")
        self._looked = time.monotonic()
        self._activity = Activity(folder) if folder else None
        self._receipts = Receipts(folder) if folder else None
        self._guard = Guard(folder, self.node.limits)
        around = Surroundings()
        self._rest = Rest(folder / PAUSED if folder else None, self._guard, around)
        self._traffic = Traffic(lambda: self._limits().max_bandwidth * MEGABYTE, self._wait)
        check_surroundings(self._guard.limits, around)

    def _tell(self, kind: str, text: str, about: Message | None = None) -> None:
        run, number = (about.metadata.run_id, round_of(about) or None) if about is not None else (None, None)
        text = printable(text)  # the server may have written parts of it
        note_event(self._folder, kind, text)
        self.on_event(Event(kind, text, run, number, self.node.client_id or None))

    def serve(self) -> int:
        """Connect and answer until asked to end; returns the exit code."""
        try:
            while not self.shutdown.asked.is_set():
                fleet = self._persist(self._open)
                if fleet is None:
                    break
                self.connect_timeout = None
                self._tell("connected", f"connected to {self.connection.superlink} as node {fleet.node_id}")
                self.shutdown.last_act = fleet.close
                with contextlib.closing(fleet):
                    try:
                        self._serve_on(fleet)
                    except NodeForgotten as error:
                        self._tell("waiting", f"{error}; connecting again")
                        fleet.abandon()
        except _GivenUp as error:
            self._tell("given-up", str(error))
            return 2
        finally:
            self._guard.moved(self._traffic.take())
        self._tell("ended", "ended, offline")
        return 0

    def _open(self) -> FleetConnection:
        def largest() -> int:
            return int(self._limits().max_model * MEGABYTE)

        return FleetConnection(self.connection, self.identity, self._store, largest, self._traffic)

    def _limits(self) -> Limits:
        with contextlib.suppress(ConfigError):  # a damaged file is said where the message is answered
            self._guard.limits = self._guard.limits_now()
        return self._guard.limits

    def _serve_on(self, fleet: FleetConnection) -> None:
        """Answer messages until asked to end, or until the SuperLink has forgotten this node."""
        last = time.monotonic()
        while not self.shutdown.asked.is_set():
            self._guard.moved(self._traffic.take())  # of whatever became of the last message
            self._rest_while_paused()
            try:
                if self._returned.exists() and not self.shutdown.asked.is_set():
                    self._returned.unlink(missing_ok=True)  # a process that ends meanwhile does it by starting again
                    self._persist(fleet.come_online_anew)
                polled_at = time.monotonic()
                self.alive(LONGEST_HOLD)
                message = self._persist(lambda: fleet.receive(LONGEST_HOLD, self._waits))
            except MessageRefused as error:
                self._decline(fleet, error)
                continue
            except MessageDropped as error:
                self._tell("dropped", f"dropped: {error}")
                continue
            if message is None:
                now = time.monotonic()
                if self._activity is not None and now - max(last, self._looked) >= _LOOK_EVERY:
                    self._looked = now
                    self._look_for_ends(fleet, self._activity)
                if now - polled_at < _HELD:  # this SuperLink answers at once, as Flower's own does
                    self.shutdown.asked.wait(poll_wait(now - last))
                continue
            try:
                self._answer(fleet, message)
            except MessageDropped as error:
                self._tell("dropped", f"{task_of(message)}: dropped, {error}", message)
            last = time.monotonic()

    def _look_for_ends(self, fleet: FleetConnection, activity: Activity) -> None:
        """Ask the SuperLink whether the latest runs have ended without a last message."""
        for run in list(activity.runs().values())[-KEPT_RUNS:]:
            if run.run_id and not run.ended and (reason := fleet.end_of(run.run_id)) is not None:
                ended = ENDED_AS.get(reason, ENDED_EARLY)
                activity.end(run.run_key, ended)
                self._tell("run-ended", f"{run.what}: {ENDED_LINES[ended]}")

    def _waits(self) -> bool:
        """Whether the client waits for a message.

        It does unless it is asked to end, rests, or has to come back.
        """
        return not (self.shutdown.asked.is_set() or self._rest.why() or self._returned.exists())

    def _rest_while_paused(self) -> None:
        shown = ""
        while why := self._rest.why():
            if why != shown:
                self._tell("paused", RESTS + why)
                shown = why
                if self._activity is not None:
                    self._activity.rested(why)
            self.alive(LONGEST_HOLD)
            if self.shutdown.asked.wait(0.25):
                return
        if shown:
            self._tell("resumed", "resumed")

    def _answer(self, fleet: FleetConnection, message: Message) -> None:
        run_id, until = message.metadata.run_id, message.metadata.created_at + message.metadata.ttl
        settings = self._persist(lambda: fleet.run_settings(run_id), until=until)
        if settings is None:
            return
        self.alive(max(0.0, until - CLOCK.now()))  # it may work until then
        started = time.monotonic()
        with working(self._folder, f"{task_of(message)}, {run_of(settings.config)}"):
            answer = self._work(fleet.node_id, message, settings)
        if answer.kind == "failed":  # what was refused is given back
            give_back_memory()
        seconds = time.monotonic() - started
        if CLOCK.now() >= until:
            raise MessageDropped(f"its time was over before the answer, which took {seconds:.1f} s")
        self._send(fleet, answer, seconds, until)
        if self._activity is not None:
            answer.remember(self._activity, settings.config, seconds)
        self._tell(answer.kind, answer.line(seconds), message)
        if (deadline := self._guard.deadline) is not None:  # what max-cpu still asks of work that is over
            self._wait(deadline.seconds_owed())

    def _send(self, fleet: FleetConnection, answer: Answer, seconds: float, until: float) -> None:
        """Send an answer, once its receipt is on the disk.

        It is sent even when the process is asked to end meanwhile, but then only once.

        Raises:
            MessageDropped: it cannot be sent in time, or its receipt cannot be written.
        """
        set_times(answer.reply, until)
        parcel, receipts, number = Parcel.of(answer.reply), self._receipts, 0
        if receipts is not None:
            try:
                number = receipts.write(answer.receipt(parcel.content_id))
            except (OSError, ValueError) as error:
                raise MessageDropped(f"its receipt cannot be written, so nothing was sent: {error}") from None

        def send() -> None:
            fleet.reply(parcel, seconds)
            if receipts is not None:
                receipts.confirm(number)

        self._persist(send, until=until)

    def _wait(self, seconds: float) -> None:
        """Wait for a limit's sake, alive, until asked to end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.shutdown.asked.is_set():
            self.alive(LONGEST_HOLD)
            self.shutdown.asked.wait(min(left, LONGEST_HOLD / 2))

    def _decline(self, fleet: FleetConnection, refused: MessageRefused) -> None:
        """Answer a message that was not taken in."""
        self._tell("failed", f"{refused.about.metadata.message_type}: failed, {refused}")
        about = refused.about.metadata
        until = about.created_at + about.ttl
        reply = error_reply(str(refused), refused.about)
        with contextlib.suppress(MessageDropped):
            self._send(fleet, Answer(refused.about, Outcome(FAILED, str(refused), replied=reply)), 0.0, until)

    def _work(self, node_id: int, message: Message, settings: RunSettings) -> Answer:
        run_id = message.metadata.run_id
        state = self._states.pop(run_id, None) or RecordDict()
        lasting, superlink = not self.identity.made_here, self.connection.superlink
        note_connection(state, self.identity.fingerprint, lasting, superlink)
        context = Context(run_id, node_id, self.node.as_config(), state, settings.config)
        try:
            if self.begin is not None:
                self.begin(settings)
            return Answer(message, self.answer(message, context))
        except BaseException as error:  # the owner's function and plug-ins may raise anything, and end nothing
            LOGGER.debug("the message could not be answered", exc_info=True)
            reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))
            owners = (self.node.state_dir, self.node.data, self.node.data_dir, self.connection.key)
            reply = error_reply(reason_of(error, owners), message)
            return Answer(message, Outcome(FAILED, reason, replied=reply))
        finally:
            self._states[run_id] = context.state
            while len(self._states) > KEPT_RUNS:
                self._states.pop(next(iter(self._states)))

    def _persist(self, act: Callable[[], T], *, until: float | None = None) -> T | None:
        """Do something that needs the SuperLink, again and again until it works.

        Args:
            act: what to do.
            until: time after which it is no use (seconds since 1970).

        Returns:
            What it returned; None when asked to end meanwhile.

        Raises:
            _GivenUp: if it did not work for the connect timeout.
            MessageDropped: if it did not work in time.
            NodeForgotten: if only connecting again can help.
        """
        since, attempt, shown = time.monotonic(), 0, ""
        while True:
            try:
                result = act()
                if shown and act != self._open:
                    self._tell("connected", f"the SuperLink at {self.connection.superlink} answers again")
                return result
            except NodeForgotten:
                raise
            except NotConnected as error:
                reason = str(error)
            timeout = self.connect_timeout
            seconds_left = float("inf") if timeout is None else since + timeout - time.monotonic()
            if seconds_left <= 0:
                raise _GivenUp(f"gave up after {timeout:g} s: {reason}")
            if until is not None and CLOCK.now() >= until:
                raise MessageDropped(f"its time is over: {reason}")
            # Where an end is in sight, the one line that gives up says the reason.
            if reason != shown and timeout is None:
                self._tell("waiting", f"{reason} (trying again)")
                shown = reason
            attempt += 1
            spread = random.random()  # nosec B311 # it spreads the clients' attempts, and guards nothing
            if self.shutdown.asked.wait(min(retry_wait(attempt, spread), seconds_left)):
                return None
