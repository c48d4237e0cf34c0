"""The roll call: each node says once which client it is.

The call carries the run's initial model w_0, from which a client warms up its requirement before it trains.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedappeal.flower.messages import has_no_handler, is_from_superlink
from fedappeal.protocol.allowance import Allowance
from strategies.rounds.exchange import FIRST_POLL, LAST_POLL, Channel
from strategies.rounds.hooks import Hooks
from strategies.rounds.members import Member, Members
from strategies.rounds.messages import roll_call_message
from strategies.rounds.replies import DataRefused, read_roll_call
from strategies.rounds.weighted_sum import Refused

SETTLED = 5.0
"""Seconds without an arrival after which a run with enough clients waits for no further one."""
FIRST_WORD = 5.0
"""Seconds of waiting after which it is said how many clients are missing."""
NEXT_WORD = 30.0
"""Seconds until it is said again."""


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
        timeout: seconds that a node may take to answer, its warm-up included.
    """

    channel: Channel
    members: Members
    initial: ArrayRecord
    config: ConfigRecord
    hooks: Hooks
    timeout: float
    _called: set[int] = field(default_factory=set)
    _pending: dict[str, tuple[int, float]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def update(self) -> bool:
        """Call nodes not called yet and enrol those that answered; return whether anything changed.

        A node that did not answer in time (a paused client) is called again.
        """
        grid, now = self.channel.grid, self.channel.clock()
        for message_id, (node, until) in list(self._pending.items()):
            if now >= until:
                del self._pending[message_id]
                self._called.discard(node)
        online = list(grid.get_node_ids())
        self.members.set_online(online)
        # A node that was refused and went away may come back mended (another version, other data): called again then.
        self._called -= self.refused.keys() - set(online)
        fresh = [node for node in online if node not in self._called]
        sent: dict[str, tuple[int, float]] = {}
        if fresh:
            ids = grid.push_messages(
                [roll_call_message(node, self.initial, self.config, self.timeout) for node in fresh]
            )
            sent = {i: (node, now + self.timeout) for i, node in zip(ids, fresh, strict=False) if i}
            self._pending |= sent
            self._called.update(node for node, _ in sent.values())
        answers = self.channel.inbox.pull(list(self._pending), Allowance()) if self._pending else []
        for message in answers:
            called = self._pending.pop(message.metadata.reply_to_message_id, None)
            if called is None:
                continue
            node = called[0]
            if is_from_superlink(message):
                self._called.discard(node)  # it went offline before it could answer: called again when it is back
                continue
            self._enrol(node, message, online)
        return bool(sent or answers)

    def update_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Enrol arrivals; wait for more until ``ready``, at most ``seconds``."""
        clock, wait = self.channel.clock, FIRST_POLL
        deadline = clock() + seconds
        self.update()
        while not ready() and clock() < deadline:
            self.channel.sleep(wait)
            wait = FIRST_POLL if self.update() else min(LAST_POLL, wait * 1.5)

    def _enrol(self, node: int, message: Message, online: list[int]) -> None:
        """Enrol the client that answered, or record why it declines."""
        try:
            member = Member.bare(node) if has_no_handler(message) else read_roll_call(message)
        except DataRefused as error:
            self.refused[node] = str(error)
            self.hooks.on_data_refused(node, error.client_id, error.problem)
            return
        except Refused as error:
            self.refused[node] = f"node {node}: {error}"
            self.hooks.on_refused(node, str(error))
            return
        before = self.members.enrol(member)
        if before is not None and before.node_id != node and before.node_id in online:
            # A client that was killed and came back; or two that say they are the same.
            reason = f"client-id '{member.client_id}' came back from another node, which counts from now on"
            self.refused[before.node_id] = f"node {before.node_id}: {reason}"
            self.hooks.on_refused(before.node_id, reason)
        self.refused.pop(node, None)
        if not member.left:  # one that had left may have changed its mind
            self.members.left.discard(member.client_id)
        self.channel.absent.discard(member.client_id)
        self.hooks.on_enrolled(member, len(self.members))

    def wait_for(self, count: int, start_timeout: float, grace: float) -> None:
        """Wait for ``count`` clients, then for others that were called while they keep coming, up to ``grace`` s.

        Args:
            count: clients to wait for; once they are there, a silent one holds them up for `SETTLED` seconds at most.
            start_timeout: seconds to wait for them.
            grace: seconds to wait for others, and where no client that has come fits the run.

        Raises:
            RollCallError: after ``start_timeout`` seconds; or where for ``grace`` seconds as many as are wanted have
                declined and no other client has come.
        """
        clock = self.channel.clock
        deadline, wait, enough, declined = clock() + start_timeout, FIRST_POLL, math.inf, math.inf
        say, came, enrolled = clock() + FIRST_WORD, clock(), len(self.members)
        while len(self.members) < count or (self._pending and clock() < min(came + SETTLED, enough + grace)):
            wait = FIRST_POLL if self.update() else min(LAST_POLL, wait * 1.5)
            if len(self.members) > enrolled:
                came, enrolled = clock(), len(self.members)
            if enrolled >= count:
                enough = min(enough, clock())
            elif clock() >= say:
                silent = sorted(node for node, _ in self._pending.values())
                self.hooks.on_waiting(enrolled, count, max(0.0, deadline - clock()), silent)
                say = clock() + NEXT_WORD
            hopeless = not self.members and not self._pending and len(self.refused) >= count > 0
            declined = min(declined, clock()) if hopeless else math.inf
            if clock() >= declined + grace:
                raise RollCallError(f"no client fits the run: all {len(self.refused)} declined{self._reasons()}")
            if len(self.members) < count and clock() >= deadline:
                raise RollCallError(
                    f"{len(self.members)} of {count} clients answered the roll call within {start_timeout:g} s "
                    f"(min-clients, start-timeout){self._reasons()}"
                )
            self.channel.sleep(wait)

    def _reasons(self) -> str:
        return "".join(f"; {reason}" for reason in self.refused.values())
