"""The connection of one long-lived client to a SuperLink: messages in, replies out, online all the while.

A message is a tree of objects. Objects that came with an earlier message are not pulled again. The server may still
be sending the others: the message's own object, which is sent last, is asked for until it is there (10 ms and more
between attempts, where Flower waits for 1 s).

The SuperLink keeps an object until every message that holds it was confirmed. To confirm at once could overtake
the server while it sends an object that we had already, and end the ServerApp with ObjectPushError. So messages
are confirmed some seconds later, when nothing else is to do; until then the server need not send the model of
an EVALUATE again for the TRAIN that follows. A later message of the same run says that the server, which sends one
after the other, had sent all of those before: they are confirmed at once, or a large model would stay in the
SuperLink's memory beside those that followed it.
"""

import contextlib
import logging
import math
import threading
import time
from codecs import BOM_UTF8
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path

from flwr.app import Message

from client.fleet.activation import HEARTBEAT_INTERVAL, NODE, Identity, activate, clock_measured
from client.fleet.probe import probe
from client.fleet.traffic import Traffic
from client.settings import GRPC, HTTP, Connection
from fedappeal.core.local_rule import Store
from fedappeal.flower import bundle
from fedappeal.flower.bundle import RunSettings
from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.fleet import (
    Announcement,
    MessageDropped,
    MessageRefused,
    NodeForgotten,
    NotAnswering,
    NotConnected,
    ObjectTooLarge,
    RunEnded,
    WrongClock,
    always,
)
from fedappeal.flower.node.fleet_api import TIMEOUT, FleetApi
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.fleet_http import HttpFleet
from fedappeal.flower.node.objects import Parcel, inflate, inflated_size
from fedappeal.system.clock import CLOCK

LARGEST_CACHE = 256 * 2**20
"""Bytes of objects that are kept."""
_HEARTBEAT_EVERY = 7.0
_AFTER_SILENCE = 0.1
"""Seconds for which a poll is held after one that failed: that the SuperLink answers again is known at once."""
_CONFIRM_AFTER = 2.0
_SLOWEST_SERVER = 1e7  # bytes a second at which a server still sends what we wait to confirm
_MOST_OBJECTS = 10_000
_AT_ONCE = 32  # objects that are asked for, after which the bounds are looked at again
KEPT_RUNS = 4
"""Runs whose settings are kept; those of a run asked for longest ago are pulled again."""
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 0.25  # seconds between attempts to pull what is not there yet


class ObjectCache:
    """The most recently used objects, by object id (the SHA-256 of their bytes).

    It holds at most twice the bytes of the largest message seen (two models), and never more than `limit`.
    """

    def __init__(self, limit: int = LARGEST_CACHE) -> None:
        self._limit = limit
        self._allowed = 0
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0

    def get(self, object_id: str) -> bytes | None:
        """Return an object's bytes, None if they are not here."""
        if object_id in self._objects:
            self._objects.move_to_end(object_id)
        return self._objects.get(object_id)

    def add_message(self, objects: Mapping[str, bytes]) -> None:
        """Remember the objects of one message, as far as they fit."""
        self._allowed = max(self._allowed, min(self._limit, 2 * sum(map(len, objects.values()))))
        for object_id, content in objects.items():
            if object_id not in self._objects and len(content) <= self._allowed:
                self._objects[object_id] = content
                self.size += len(content)
        while self.size > self._allowed:
            self.size -= len(self._objects.popitem(last=False)[1])


def _fleet_of(connection: Connection, identity: Identity) -> FleetApi:
    """Return the Fleet API in the protocol that the SuperLink speaks; NotConnected if there is none."""
    transport = {GRPC: GrpcFleet, HTTP: HttpFleet}[probe(connection)]
    file = connection.root_certificates
    return transport(
        connection.superlink,
        identity.key,
        insecure=connection.insecure,
        root_certificates=Path(file).read_bytes().removeprefix(BOM_UTF8) if file else None,
    )


def unregister(connection: Connection, store: Store) -> None:
    """Have a node's key struck off for good, by a call that the key signs.

    Args:
        connection: where its SuperLink is, and the key.
        store: of its node id; one that is online may be struck off, too.

    Raises:
        NotConnected: the SuperLink does not answer; NodeForgotten: it does not know the node any more.
    """
    identity = Identity.of(connection)
    with contextlib.closing(_fleet_of(connection, identity)) as fleet, clock_measured(fleet):
        node = store.read(NODE)
        is_its = node is not None and node.values.get("client-id") == identity.client_id
        fleet.unregister(
            int(node.values["node-id"]) if node and is_its else activate(fleet, identity, store), TIMEOUT
        )


def _check_size(message: Announcement, size: int, largest: int) -> None:
    """Check the bytes of a message; MessageRefused where they are more than may be; ``largest`` 0: any number."""
    if largest and size > largest:
        most = f"{largest / 1e6:g} MB"
        raise MessageRefused(f"a message of more than this client's max-model = {most}", message.about)


class FleetConnection:
    """A node that is online: receives messages, sends replies, keeps its heartbeat going. One per process.

    Attributes:
        node_id: the node.
        traffic: what its messages, replies and bundles take.
        run_settings: returns a run's settings, of the latest runs as they were pulled once; errors as of
            `_pull_settings`.
    """

    def __init__(
        self,
        connection: Connection,
        identity: Identity | None = None,
        store: Store | None = None,
        largest: Callable[[], int] = lambda: 0,
        traffic: Traffic | None = None,
    ) -> None:
        """Connect to the SuperLink and go online as a node.

        Args:
            connection: where it is and how to speak to it.
            identity: the node's key; the same key keeps the same node id as long as the SuperLink knows it.
            store: where to remember the node id; it tells a key that is not known from one that is still online.
            largest: returns the most bytes that a message may bring; 0: any number.
            traffic: counts what is moved; None: its own, without a bound.

        Raises:
            NotConnected: if it is not there or does not admit the node.
            ValueError: if the key is unfit.
        """
        logging.getLogger("flwr").setLevel(logging.WARNING)
        identity = identity or Identity.of(connection)
        self._fleet = _fleet_of(connection, identity)
        try:
            with clock_measured(self._fleet):
                self.node_id = activate(self._fleet, identity, store)
        except BaseException:
            self._fleet.close()
            raise
        self._largest, self._made_here = largest, identity.made_here
        self._cache = ObjectCache()
        self.run_settings = lru_cache(maxsize=KEPT_RUNS)(self._pull_settings)
        self._unconfirmed: deque[tuple[float, int, str]] = deque()
        self._half: Announcement | None = None
        self._forgotten, self._answers = False, True
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self.traffic = traffic or Traffic()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def receive(self, hold: float = 0.0, waits: Callable[[], bool] = always) -> Message | None:
        """Pull the oldest message for this node with all that it holds; None if there is none.

        Args:
            hold: seconds for which the SuperLink may wait for a message, where it can; up to `LONGEST_HOLD`.
            waits: asked every quarter of a second meanwhile; False: the message is no longer waited for.

        Raises:
            MessageDropped: if its time is over or its run has ended; it is gone.
            MessageRefused: if it is larger than may be, or cannot be read; it is gone, and can be answered.
            NotConnected: if the SuperLink does not answer; asking again may help.
            NodeForgotten: if it does not know this node any more.
        """
        if self._forgotten:
            raise NodeForgotten(f"the SuperLink at {self._fleet.address} does not know this node any more")
        hold, self._answers = hold if self._answers else min(hold, _AFTER_SILENCE), False
        with clock_measured(self._fleet):
            # The SuperLink hands a message out once: one that could not be pulled whole is not asked for again.
            message = self._half or self._fleet.pull(self.node_id, hold, partial(self._still, waits))
            self._answers = True
            if message is None:
                self._confirm_due()
                return None
            self._half = message
            self._make_due(message.about.metadata.run_id)
            self._confirm_due()
            return self._pull_whole(message)

    def _pull_whole(self, message: Announcement) -> Message:
        about, largest = message.about.metadata, self._largest()
        try:
            if about.created_at + about.ttl <= CLOCK.now():
                raise MessageDropped(
                    f"a {about.message_type} message came more than {about.ttl:g} s after it was sent"
                )
            be_sender(about.run_id, self.node_id, about.dst_task_id or 0)
            if len(message.parts) > _MOST_OBJECTS:
                raise MessageRefused(f"a message of more than {_MOST_OBJECTS} objects is not allowed", message.about)
            root = message.object_id
            contents = {part: content for part in message.parts if (content := self._cache.get(part)) is not None}
            size = sum(map(len, contents.values()))
            _check_size(message, size, largest)
            with self._of_known_run(about.run_id):
                # The message's own object comes last, so one that is looked at alone says whether all is there.
                for parts in ([root], message.parts):
                    size = self._pull(message, parts, contents, size, largest)
        except NotConnected:
            raise
        except ObjectTooLarge as error:
            self._done(0, message)
            raise MessageRefused(str(error), message.about) from None
        except Exception:
            self._done(0, message)
            raise
        self._done(size, message)
        try:
            _check_size(message, inflated_size(contents), largest)
            # Remembered before, because what is built is let go of: a large model would be there three times.
            self._cache.add_message({part: contents[part] for part in message.parts})
            return inflate(root, contents)
        except MessageRefused:
            raise
        except Exception as error:  # garbage raises almost anything
            raise MessageRefused(f"the message cannot be read: {type(error).__name__}", message.about) from error

    def _done(self, size: int, message: Announcement) -> None:
        """Take note that a message has been pulled, or given up: to be confirmed once there is time."""
        self._half = None
        due = time.monotonic() + _CONFIRM_AFTER + size / _SLOWEST_SERVER
        self._unconfirmed.append((due, message.about.metadata.run_id, message.object_id))

    def reply(self, parcel: Parcel, runtime_s: float) -> None:
        """Send a reply with all that it holds.

        Args:
            parcel: the reply, made with ``reply_to``.
            runtime_s: seconds that the app worked on it; the SuperLink adds them up.

        Raises:
            MessageDropped: if its run has ended, or is not known.
            NotConnected: as in `receive`; sending it again may help.
        """
        run_id = parcel.message.metadata.run_id
        with clock_measured(self._fleet), self._of_known_run(run_id):
            upload = self._fleet.push(self.node_id, parcel, runtime_s)
            began = self.traffic.clock()
            self._fleet.push_objects(self.node_id, run_id, upload)
        self.traffic.move(sum(map(len, upload.objects.values())), began)

    def _pull_settings(self, run_id: int) -> RunSettings:
        """Return the settings and the version of a run's bundle.

        Raises:
            MessageDropped: if the run has ended, or its bundle cannot be read.
            NotConnected: as in `receive`.
        """
        with clock_measured(self._fleet):
            run = self._fleet.get_run(self.node_id, run_id)
            began = self.traffic.clock()
            content = self._fleet.get_fab(self.node_id, run_id, run.fab_hash)
        self.traffic.move(len(content), began)
        if sha256(content).hexdigest() != run.fab_hash:
            raise MessageDropped(f"the bundle of run {run_id} is another than was announced")
        try:
            return bundle.read_bundle(content, run.overrides)
        except ValueError as error:
            raise MessageDropped(f"the bundle of run {run_id} is not allowed: {error}") from None

    def end_of(self, run_id: int) -> str | None:
        """Return how a run has ended, as `RunEnded` has it; None: it has not, or the SuperLink says nothing."""
        try:
            with clock_measured(self._fleet):
                self._fleet.get_run(self.node_id, run_id)
        except RunEnded as ended:
            return ended.how
        except NotConnected:  # said where a message is asked for
            pass
        return None

    def come_online_anew(self) -> None:
        """Go offline and online at once: a run that this client has left then asks whether that still holds.

        All runs count the node as offline for that moment; what they have sent it waits.

        Raises:
            NotConnected: as in `receive`; to do it again may help, within one heartbeat.
        """
        with clock_measured(self._fleet):
            # Where an answer is lost, this is refused until the next heartbeat has brought the node online.
            self._fleet.deactivate(self.node_id)
            self._fleet.heartbeat(self.node_id, HEARTBEAT_INTERVAL)

    def close(self, timeout: float = 0.4) -> None:
        """Go offline, with at most three calls of ``timeout`` seconds. Never raises; a second time does nothing."""
        with self._closing, contextlib.suppress(NotConnected, MessageDropped):
            if self._closed.is_set():
                return
            self._closed.set()
            self._fleet.deactivate(self.node_id, timeout)
            if self._made_here:
                self._fleet.unregister(self.node_id, timeout)
        self._fleet.close()

    def abandon(self) -> None:
        """Close without a word to the SuperLink, where it does not know this node any more."""
        self._closed.set()
        self._fleet.close()

    def _beat(self) -> None:
        wait = _HEARTBEAT_EVERY
        while not self._closed.wait(wait):
            try:
                is_known = self._fleet.heartbeat(self.node_id, HEARTBEAT_INTERVAL)
                wait = _HEARTBEAT_EVERY
            except NodeForgotten:
                is_known = False
            except (NotConnected, MessageDropped, ValueError):  # ValueError: the channel was closed meanwhile
                is_known, wait = True, 1.0
            if not is_known:
                self._forgotten = True
                return

    def _pull(
        self, message: Announcement, parts: Sequence[str], contents: dict[str, bytes], size: int, largest: int
    ) -> int:
        """Add a message's objects to its contents, waiting in its time for those that the server has not sent yet.

        Args:
            message: the message.
            parts: which of its objects.
            contents: those that are here, by id.
            size: their bytes.
            largest: the most bytes; 0: any number.

        Returns:
            The bytes of all that are here then.
        """
        about, wait = message.about.metadata, _FIRST_WAIT
        until = about.created_at + about.ttl
        while missing := [part for part in parts if part not in contents]:
            if wait > _FIRST_WAIT:
                if CLOCK.now() >= until:
                    raise MessageDropped("its time was over before the server had sent all of it")
                time.sleep(wait)
            for first in range(0, len(missing), _AT_ONCE):
                # A message's tree says no sizes: so some at a time, and none after the limit was passed.
                began = self.traffic.clock()
                pulled = self._fleet.pull_objects(self.node_id, about.run_id, missing[first : first + _AT_ONCE])
                moved = sum(map(len, pulled.values()))
                in_time = self.traffic.move(moved, began, until - CLOCK.now())
                contents |= pulled
                size += moved
                _check_size(message, size, largest)
                if not in_time:
                    raise MessageDropped("this client's max-bandwidth lets no more of it come in its time")
                if not pulled:
                    break
            wait = min(wait * 1.5, _LONGEST_WAIT)
        return size

    @contextlib.contextmanager
    def _of_known_run(self, run_id: int) -> Iterator[None]:
        """Raise `MessageDropped` where a call fails because the SuperLink, restored from a backup, lacks the run.

        Flower's own then says no more than that it failed.
        """
        try:
            yield
        except NotAnswering:
            raise
        except NotConnected:
            self._fleet.get_run(self.node_id, run_id)
            raise

    def _still(self, waits: Callable[[], bool]) -> bool:
        """Whether a held poll is still waited for; meanwhile there is time to confirm."""
        self._confirm_due()
        return not self._forgotten and waits()

    def _make_due(self, run_id: int) -> None:
        """Let a run's messages so far be confirmed before any others."""
        due = [(-math.inf, run, object_id) for _, run, object_id in self._unconfirmed if run == run_id]
        self._unconfirmed = deque([*due, *(later for later in self._unconfirmed if later[1] != run_id)])

    def _confirm_due(self) -> None:
        """Confirm what is due; what is refused is given up, and what could not be asked is left for later.

        Nothing is raised, for a message may be on its way.
        """
        while self._unconfirmed and self._unconfirmed[0][0] <= time.monotonic():
            _, run_id, object_id = self._unconfirmed[0]
            try:
                self._fleet.confirm(self.node_id, run_id, object_id)
            except (NotAnswering, WrongClock):
                return
            except (NotConnected, MessageDropped):  # of a run that has ended, or is not known, nothing is kept
                pass
            self._unconfirmed.popleft()
