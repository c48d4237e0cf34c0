"""The roll call: each node says once which client it is.

The call carries the run's initial model w_0, from which a client warms up its requirement before it trains.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedappeal.flower.grid.inbox import ConnectedNode, ConnectedNodes
from fedappeal.flower.messages import has_no_handler, is_from_superlink
from fedappeal.protocol import keys, proof
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.packing import Allowance
from strategies.rounds.exchange.calls import Call, Calls
from strategies.rounds.exchange.exchange import FIRST_POLL, LAST_POLL, Channel
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.exchange.ownership import Identities, Owners, ProvenKey
from strategies.rounds.exchange.replies import (
    AwaitsApproval,
    DataRefused,
    Declined,
    read_client_id,
    read_proof,
    read_roll_call,
)
from strategies.rounds.reply import Refused
from strategies.rounds.round import Hooks, Setup

SETTLED = 5.0
"""Seconds without an arrival after which a run with enough clients waits for no further one."""
FIRST_WORD = 5.0
"""Seconds of waiting after which it is said how many clients are missing."""
NEXT_WORD = 30.0
"""Seconds until it is said again."""
MOST_REASONS = 20
"""Refusals that an error quotes."""
MOST_TOLD = 50
"""Refusals that the hooks are told of each."""
MOST_GONE = 1000
"""Refused nodes that have gone away, whose reasons are remembered."""


class RollCallError(RuntimeError):
    """Too few clients answered the roll call; the message says how many and why."""


@dataclass
class RollCall:
    """Enrols nodes as they appear; by node id where a ClientApp knows no roll call.

    Args:
        channel: how messages travel.
        members: where clients are enrolled.
        initial: the run's initial model w_0.
        config: what every client is told (run-key, layout, fingerprint, protocol).
        hooks: told of each arrival and refusal.
        setup: how many clients are waited for and enrolled, and how long; a node may take ``start_timeout``
            seconds to answer, its warm-up included. A client that is enrolled keeps its place.
        identities: whose client-ids are, of real nodes.
        told: further ConfigRecords of it, by name.
    """

    channel: Channel
    members: Members
    initial: ArrayRecord
    config: ConfigRecord
    hooks: Hooks
    setup: Setup
    identities: Identities = field(default_factory=Owners)
    told: Mapping[str, ConfigRecord] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    _warned: bool = False
    _refusals: int = 0

    def __post_init__(self) -> None:
        self._calls, names = Calls(self.setup.shared.max_clients), self.setup.flower
        self._content = RecordDict(
            {names.arrayrecord_key: self.initial, names.configrecord_key: self.config, **self.told}
        )
        self._connected = ConnectedNodes(self.channel.grid)
        self._settled: Sequence[ConnectedNode] | None = None

    def update(self) -> bool:
        """Call nodes not called yet and enrol those that answered; return whether anything changed.

        A node that did not answer in time (a paused client) is called again.
        """
        grid, now, calls = self.channel.grid, self.channel.clock(), self._calls
        nodes = self._connected.now()
        if nodes is self._settled and not calls.pending:
            return False
        calls.expire(now, self.setup.shared.start_timeout)
        online = {node.node_id: node.activated for node in nodes}
        self.members.set_online(online)
        if not self._warned and any(node.real and not node.registered for node in nodes):
            self._warned = True  # once: the run has a node whose key no operator registered
            self.hooks.on_open_federation()
        # A node that was refused and went away may come back mended (another version, other data): called again then.
        gone = [node for node in self.refused if node not in online]
        calls.again(gone)
        for node in gone[:-MOST_GONE]:
            del self.refused[node]
        # One that has left or was refused, and connects anew, may have changed its mind: its answer says so.
        left_nodes = {member.node_id for member in map(self.members.of_client, self.members.left) if member}
        if left_nodes := left_nodes | self.refused.keys():
            calls.again((left_nodes & calls.renewed(online)) - {call.node.node_id for call in calls.pending.values()})
        if due := calls.due(nodes, now):
            ids = grid.push_messages([self._message(call) for call in due])
            sent = {message_id: call for message_id, call in zip(ids, due, strict=False) if message_id}
            for message_id, call in sent.items():
                calls.sent(message_id, call)
            due = list(sent.values())
        answers = self.channel.inbox.pull(list(calls.pending), Allowance()) if calls.pending else []
        expected = [message for message in answers if message.metadata.reply_to_message_id in calls.pending]
        calls_answered = [(calls.pending.pop(message.metadata.reply_to_message_id), message) for message in expected]
        self._take(calls_answered, online)
        for node in calls.lost(online, now):  # the call may have ended with the node's process
            self._unavailable(node, "it came online anew before it answered")
        all_called = not due and not calls.waiting(nodes)
        self._settled = nodes if all_called else None
        return bool(due or answers)

    def _message(self, call: Call) -> Message:
        content = self._content.copy()
        if call.nonce:
            content[self.setup.flower.configrecord_key] = ConfigRecord({**self.config, keys.NONCE: call.nonce})
        ttl = self.setup.shared.start_timeout
        return Message(content, call.node.node_id, MessageType.QUERY, ttl=ttl, group_id="0")

    def _unavailable(self, node: int, reason: str) -> None:
        """Call a node again, after a pause."""
        self._calls.again([node])
        times, pause = self._calls.failed(node, self.channel.clock())
        self.hooks.on_unavailable(node, times, pause, reason)

    def _take(self, answers: list[tuple[Call, Message]], online: Container[int]) -> None:
        """Enrol the clients that answered, or record why they decline."""
        real = any(call.node.real for call, _ in answers)
        with (self.identities if real else Owners()).open() as owners:
            for call, message in answers:
                node = call.node.node_id
                if is_from_superlink(message):  # it went offline before it could answer
                    self._unavailable(node, printable(" ".join((message.error.reason or "").split())))
                    continue
                try:
                    if self._enrol(call, message, owners, online):
                        self._calls.succeeded(node)
                        continue
                except Refused as error:
                    self._refuse(node, error)
                self._calls.failed(node, self.channel.clock())

    def _enrol(self, call: Call, message: Message, owners: Owners, online: Container[int]) -> bool:
        """Enrol the client that answered; return whether it takes part, as ever: neither left for good nor returns.

        Raises:
            Refused: it does not fit the run, or the client-id is another's.
        """
        node = call.node
        key, member = self._read(call, message, owners)
        member = replace(member, node_id=node.node_id, key_id=key.key_id if key is not None else "")
        if key is not None:
            self._check_place(member, node)
            if member.enrolled:
                owners.claim(member.client_id, key)
        previous = self.members.enrol(member)
        if previous is not None and previous.node_id != node.node_id and previous.node_id in online:
            # A client that was killed and came back; or two with the same key, or of a simulation with the same id.
            reason = f"client-id '{member.client_id}' came back from another node, which counts from now on"
            self._refuse(previous.node_id, Refused(reason))
        self.refused.pop(node.node_id, None)
        self.channel.absent.discard(member.client_id)
        if not member.left or previous is None or previous.node_id != member.node_id:
            self.hooks.on_enrolled(member, len(self.members))
        stayed = member.client_id not in self.members.left
        if not member.left:  # one that had left may have changed its mind
            self.members.left.discard(member.client_id)
        return stayed and not member.left

    def _read(self, call: Call, message: Message, owners: Owners) -> tuple[ProvenKey | None, Member]:
        """Return the key that a node has proven, and who it says it is.

        The key is None in a simulation.

        Raises:
            Refused: whatever is wrong with the answer.
        """
        try:
            key = self._key_of(call, message) if call.node.real else None
            try:
                return key, Member.bare(call.node.node_id) if has_no_handler(message) else read_roll_call(message)
            except Declined as error:
                if key is not None:
                    owners.check(error.client_id, key)
                raise
        except Refused:
            raise
        except Exception as error:  # what a client wrote can make anything raise: it concerns that client alone
            raise Refused(f"its answer cannot be read ({type(error).__name__})") from error

    def _refuse(self, node: int, refusal: Refused) -> None:
        """Take note of a node that is not enrolled.

        Of very many, the hooks are told of ever fewer.
        """
        # A client that declines itself is named; of any other the node is all that is known.
        self.refused[node] = str(refusal) if isinstance(refusal, Declined) else f"node {node}: {refusal}"
        self._refusals = count = self._refusals + 1
        if count > MOST_TOLD:
            if count & (count - 1) == 0:
                text = f"{refusal} (refusal {count} of this run; few are told from {MOST_TOLD} on)"
                self.hooks.on_refused(node, text)
        elif isinstance(refusal, AwaitsApproval):
            self.hooks.on_awaits_approval(node, refusal.client_id)
        elif isinstance(refusal, DataRefused):
            self.hooks.on_data_refused(node, refusal.client_id, refusal.problem)
        else:
            self.hooks.on_refused(node, str(refusal))

    def _check_place(self, member: Member, node: ConnectedNode) -> None:
        """Refuse one client too many, and a node that is another client of the run already."""
        new = self.members.of_client(member.client_id) is None
        if new and 0 < (most := self.setup.shared.max_clients) <= len(self.members):
            raise Refused(f"the run has all of its {most} clients (max-clients)")
        if new and (present := self.members.of_node(node.node_id)) is not None:
            raise Refused(f"this node is client '{present.client_id}' in this run, not '{member.client_id}'")

    def _key_of(self, call: Call, message: Message) -> ProvenKey:
        """Return the key that a real node has proven.

        The operator's registration counts before the client's own key, and that before the key of a connection.

        Raises:
            Refused: for a proof that does not hold.
        """
        node, of_connection = call.node, proof.fingerprint(call.node.public_key)
        if node.registered or (shown := read_proof(message)) is None:
            return ProvenKey(of_connection, node.registered)
        client_id, run_key = read_client_id(message), str(self.config.get(keys.RUN_KEY, ""))
        # Under a stock SuperNode, earlier versions name the node id: another server could have passed that on.
        names = of_connection, str(node.node_id)
        bound, passed_on = (proof.statement(call.nonce, run_key, name, client_id) for name in names)
        with suppress(ValueError):
            return ProvenKey(proof.signer_of(*shown, bound), True)
        try:
            proof.signer_of(*shown, passed_on)
        except ValueError as error:
            raise Refused(f"the proof that client-id '{client_id}' is this node's does not hold: {error}") from None
        return ProvenKey(of_connection, False)

    def update_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Enrol arrivals; wait for more until ``ready``, at most ``seconds``."""
        clock, wait = self.channel.clock, FIRST_POLL
        deadline = clock() + seconds
        self.update()
        while not ready() and clock() < deadline:
            self.channel.sleep(wait)
            wait = FIRST_POLL if self.update() else min(LAST_POLL, wait * 1.5)

    def wait_for_clients(self) -> None:
        """Wait for the run's first clients.

        Once all that are expected have come, others that were called are waited for while they keep coming: none for
        more than `SETTLED` seconds, all for ``round_timeout`` seconds at most. Where fewer come, the run begins
        ``start_after`` seconds after the last one, with ``min_clients`` at least. A node that is refused counts for
        nothing here: it neither ends the wait nor prolongs it.

        Raises:
            RollCallError: fewer than ``min_clients`` have come after ``start_timeout`` seconds.
        """
        clock, settings = self.channel.clock, self.setup.shared
        least, wanted = settings.min_clients, max(settings.min_clients, settings.expected_clients)
        deadline, wait, all_here = clock() + settings.start_timeout, FIRST_POLL, math.inf
        next_word, last_arrival, enrolled = clock() + FIRST_WORD, clock(), len(self.members)
        while True:
            wait = FIRST_POLL if self.update() else min(LAST_POLL, wait * 1.5)
            now, until = clock(), deadline
            if len(self.members) > enrolled:
                last_arrival, enrolled = now, len(self.members)
            if enrolled >= wanted:
                all_here = min(all_here, now)
                until = min(last_arrival + SETTLED, all_here + settings.round_timeout) if self._calls.pending else now
            elif enrolled >= least:
                until = min(deadline, last_arrival + settings.start_after)
            if now >= until:
                break
            if now >= next_word and enrolled < wanted:
                silent = sorted(call.node.node_id for call in self._calls.pending.values())
                self.hooks.on_waiting(enrolled, wanted, until - now, silent)
                next_word = now + NEXT_WORD
            self.channel.sleep(wait)
        if enrolled < least:
            reasons = list(self.refused.values())
            more = [f"and {len(reasons) - MOST_REASONS} more"] if len(reasons) > MOST_REASONS else []
            raise RollCallError(
                f"{enrolled} of {wanted} clients answered the roll call within {settings.start_timeout:g} s "
                f"(min-clients, start-timeout){''.join(f'; {reason}' for reason in reasons[:MOST_REASONS] + more)}"
            )
