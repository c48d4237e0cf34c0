"""A node's key and clock, going online at a SuperLink, and why that was refused.

Flower answers alike for a key that it does not know and for one whose node counts as online still. A client that was
online before remembers its node id, and asks whether the two go together: that tells them apart.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client.settings import Connection
from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.flower.node.fleet import (
    AlreadyRegistered,
    KeyRequired,
    MessageDropped,
    NodeForgotten,
    NotActivated,
    NotAdmitted,
    NotAnswering,
    NotConnected,
    WrongClock,
)
from fedappeal.flower.node.fleet_api import FleetApi
from fedappeal.flower.node.signing import AHEAD, BEHIND, public_key_bytes
from fedappeal.protocol.proof import fingerprint, key_id
from fedappeal.system.clock import CLOCK

_FURTHEST = 15 * 3600.0
"""Seconds that are searched each way: a wrong time zone is up to 14 hours."""
_AT_ONCE = 16

Passes = Callable[[Sequence[float]], list[bool]]
"""Whether calls pass that are signed with this machine's time plus these seconds."""


@contextmanager
def clock_measured(fleet: FleetApi) -> Iterator[None]:
    """Let a call that is refused because of its time say how far this machine's clock is off.

    The next call is signed with the time that the machine's clock shows now: that may have been set right meanwhile.

    Raises:
        WrongClock: with that line.
        NotAnswering: if the SuperLink does not answer meanwhile.
    """
    try:
        yield
    except WrongClock:
        CLOCK.read_again()
        raise WrongClock(describe(seconds_ahead(fleet.pass_when_signed), fleet.address)) from None


def seconds_ahead(passes: Passes) -> float | None:
    """Return by how many seconds this machine's clock is ahead of the SuperLink's (negative: behind).

    Args:
        passes: asks the SuperLink.

    Returns:
        The difference, to half a second; None if it is more than 15 hours.
    """
    steps = range(int(_FURTHEST // BEHIND) + 1)
    shifts = [sign * step * BEHIND for step in steps for sign in ((1, -1) if step else (1,))]  # the smallest first
    batches = (shifts[start : start + _AT_ONCE] for start in range(0, len(shifts), _AT_ONCE))
    if (good := next((shift for batch in batches for shift in compress(batch, passes(batch))), None)) is None:
        return None
    # The latest time that passes is the SuperLink's plus its tolerance.
    bad = good + BEHIND + 2 * AHEAD
    while bad - good > 0.5:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if passes([middle])[0] else (good, middle)
    return AHEAD - good


def describe(ahead: float | None, address: str) -> str:
    """Return what is wrong with this machine's clock, in one line."""
    if ahead is not None and -BEHIND < ahead < AHEAD:
        return f"this machine's clock, or that of the SuperLink at {address}, was set: they agree again"
    if ahead is None:
        difference = f"more than {_FURTHEST / 3600:.0f} hours away from that of"
    else:
        seconds = round(abs(ahead))
        hours = f" ({seconds / 3600:.1f} hours)" if seconds >= 3600 else ""
        difference = f"{seconds} s{hours} {'ahead of' if ahead > 0 else 'behind'}"
    allowed = f"{AHEAD:g} s ahead and {BEHIND:g} s behind are allowed"
    return f"this machine's clock is {difference} the SuperLink at {address} ({allowed}): set it"


HEARTBEAT_INTERVAL = 10.0
"""Seconds, Flower's minimum: a node that died counts as online, and its key is refused, for twice as long."""
NODE = "node"
"""The record of the node id."""
log = logging.getLogger("fedappeal.client")


@dataclass(frozen=True)
class Identity:
    """The key that a node signs its calls with.

    Attributes:
        key: its private key.
        made_here: whether this process made the key, so that the node registers itself.
    """

    key: ec.EllipticCurvePrivateKey
    made_here: bool

    @classmethod
    def of(cls, connection: Connection) -> "Identity":
        """Load the key that the settings name, or make one.

        Raises:
            ValueError: if the file holds no private key on a NIST curve in OpenSSH format.
        """
        if not connection.key:
            # The SuperLink checks a signature at every call: 0.7 ms for all of a poll, 1.4 ms with Flower's P-384.
            return cls(ec.generate_private_key(ec.SECP256R1()), made_here=True)
        requirement = "it must hold an ECDSA key without a passphrase (`fedappeal key` makes one)"
        try:
            data = Path(connection.key).read_bytes()
            key = serialization.load_ssh_private_key(data, None)
        except (ValueError, TypeError, OSError, UnsupportedAlgorithm) as error:
            raise ValueError(f"key = '{connection.key}' is not allowed: {requirement}; {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"key = '{connection.key}' is not allowed: {requirement}")
        return cls(key, made_here=False)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the public key as the SuperLink knows it, in hex."""
        return fingerprint(public_key_bytes(self.key.public_key()))

    @property
    def client_id(self) -> str:
        """The client-id that belongs to the key: the start of its fingerprint."""
        return key_id(self.fingerprint)


def activate(fleet: FleetApi, identity: Identity, store: Store | None) -> int:
    """Go online and return the node id.

    Args:
        fleet: calls that are signed with the identity's key.
        identity: the node's key; one that was made here is registered first.
        store: where the node id is remembered.

    Raises:
        NotConnected: if the SuperLink is not there or does not admit the node; the message says why.
    """
    if identity.made_here:
        store = None
        # Known already after a loss of the connection: it stays the same node.
        with contextlib.suppress(AlreadyRegistered):
            try:
                fleet.register()
            except KeyRequired:
                raise NotAdmitted(
                    f"the SuperLink at {fleet.address} admits registered keys only, and this node has none: make one "
                    f"(fedappeal key), give it (key) and give its .pub to the operator"
                ) from None
    place = {"superlink": fleet.address, "client-id": identity.client_id}
    last = store.read(NODE) if store else None
    try:
        node_id = fleet.activate(HEARTBEAT_INTERVAL)
    except NotActivated:
        unknown = (
            f"the SuperLink at {fleet.address} does not admit this node's key ({identity.client_id}): it is not "
            f"registered there (the operator does that: fedappeal federation register KEY.pub), or another process "
            f"is online with it"
        )
        if last is None or not place.items() <= last.values.items():
            raise NotActivated(unknown) from None
        if knows(fleet, int(last.values["node-id"])):
            raise NotActivated(
                f"the SuperLink at {fleet.address} still counts this node as online: a process with its key ended "
                f"without a word less than {2 * HEARTBEAT_INTERVAL:g} s ago, or runs elsewhere"
            ) from None
        raise NotAdmitted(
            f"{unknown}; it was known there before: unregistered since (a member leaves then, fedappeal client leave "
            "--federation, and joins by a new invitation), or the SuperLink is a new one"
        ) from None
    node = {**place, "node-id": str(node_id)}
    if store and (last is None or dict(last.values) != node):
        try:
            store.write(NODE, StoredRecord(node))
        except OSError as error:  # a full disk: the connection matters more
            log.warning("which node this client is could not be remembered: %s", error)
    return node_id


def knows(fleet: FleetApi, node_id: int) -> bool:
    """Whether the SuperLink knows this node's key under a node id.

    Raises:
        NotConnected: if it does not answer.
    """
    try:
        # About no run at all: nothing comes of it, whatever the answer.
        fleet.get_run(node_id, run_id=0)
    except NodeForgotten:
        return False
    except NotAnswering:
        raise
    except (NotConnected, MessageDropped):
        pass  # it looked for the run, so the key and the node id go together
    return True
