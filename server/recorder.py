"""Fills a run's folder round by round: lines, and the checkpoints behind them."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord

from fedappeal.protocol import keys
from fedappeal.protocol.keys import DataProblem
from fedappeal.protocol.packing import content_hash
from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder, is_local
from fedappeal.record.lines import HISTORY, MEASUREMENTS, MOST_MEASUREMENTS, PARTICIPATION, POLICIES
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from server.build import Plugins
from server.checkpoints import Checkpoint, write_checkpoint
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Hooks, RoundRecord
from strategies.rounds.rounds import Rounds

SECONDS_APART = 1.0
"""Between checkpoints that need not be durable, after the first two rounds."""
_FEWEST = 2
"""Checkpoints that a run has from this round on: one may be damaged."""
LARGEST_SHARE = 20
"""Of such a run's time, checkpoints take one part in this many: the next one waits until the last one is paid for."""

_ENOUGH = 3
"""Real clients that have to say that own plug-ins fail: no lone one ends a run of others."""


class ClientMemory:
    """The clients' memory, kept with the checkpoints; here none is, as it does not end with the server's process."""

    def restore(self, server_round: int) -> None:
        """Restore the clients' memory after a round; 0 for before the first.

        Raises:
            ConfigError: if it is not there.
        """

    def enrolled(self, server_round: int) -> None:
        """All clients have answered the roll call, and a round is about to begin."""

    def save(self, server_round: int) -> None:
        """Keep the clients' memory after a round, beside earlier ones."""

    def keep_only(self, rounds: Collection[int]) -> None:
        """Delete the memory kept after other rounds than these."""

    def check(self, server_round: int) -> None:
        """Check that the memory kept after a round can be read.

        Raises:
            ConfigError: it cannot.
        """


NO_MEMORY = ClientMemory()
"""The memory of clients in processes of their own."""


@dataclass
class Recorder(Hooks):
    """Fills the run's folder, round by round.

    Attributes:
        folder: the run's.
        running: the run's rounds.
        initial: w_0.
        rounds: number of the last round.
        plugins: the run's.
        watch: told of each round after it is on the disk.
        durable: whether there is a checkpoint after each round.
        memory: the clients', where it has to be kept with the checkpoints.
    """

    folder: RunFolder
    running: Rounds
    initial: ArrayRecord
    rounds: int
    plugins: Plugins
    watch: Hooks
    durable: bool
    memory: ClientMemory = NO_MEMORY

    def __post_init__(self) -> None:
        self._policies = {str(line["client-id"]) for line in Record(self.folder.path).policies}
        self._due = 0.0
        self._unsaved: tuple[int, ArrayRecord] | None = None
        self._begun = False
        self._initial_hash = content_hash(self.initial)
        self._foreign = bool(self.plugins.foreign())

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        """Record an arrival, and the client's policy where the run mixes policies."""
        self.watch.on_enrolled(member, enrolled)
        client = member.client_id
        version = {"version": member.version} if member.version else {}
        examples = {"examples": member.num_examples} if member.enrolled else {}
        facts = {"role": member.role, "enrolled": enrolled, "node": str(member.node_id), **examples, **version}
        if client in self.running.members.left and not member.left:
            facts["returned"] = True
        self.folder.event("enrolled", client=client, **facts)
        if len(self.plugins.mixture.names) > 1 and client not in self._policies:
            self._policies.add(client)
            policy = self.plugins.mixture.of(self.running.setup.shared.seed, client)
            self.folder.append(POLICIES, {"client-id": client, "policy": policy})

    def on_refused(self, node_id: int, reason: str) -> None:
        """Record a client that does not fit the run, with its reason."""
        self.folder.event("refused", node=str(node_id), reason=reason)
        self.watch.on_refused(node_id, reason)

    def on_data_refused(self, node_id: int, client_id: str, problem: DataProblem) -> None:
        """Record a client whose own data do not fit the run, with the category."""
        self.folder.event("refused", node=str(node_id), client=client_id, problem=problem.value, reason=problem.text)
        self.watch.on_data_refused(node_id, client_id, problem)

    def on_awaits_approval(self, node_id: int, client_id: str) -> None:
        """Record a client that waits for its owner's approval."""
        self.folder.event("awaits-approval", node=str(node_id), client=client_id)
        self.watch.on_awaits_approval(node_id, client_id)

    def on_unavailable(self, node_id: int, times: int, seconds: float, reason: str) -> None:
        """Record a node that does not answer.

        At the second time, the fourth, the eighth and so on.
        """
        if times > 1 and times & (times - 1) == 0:
            facts = {"times": times, "seconds": round(seconds), "reason": reason}
            self.folder.event("unavailable", node=str(node_id), **facts)

    def on_open_federation(self) -> None:
        """Record that the run counts nodes, not people.

        Of a local run they are all its user's own.
        """
        if not is_local(self.folder.path):
            self.folder.event("open")

    def on_waiting(self, enrolled: int, wanted: int, seconds: float, silent: Sequence[int]) -> None:
        """Record how many clients are missing before the first round."""
        nodes = [str(node) for node in silent]
        self.folder.event("waiting", enrolled=enrolled, wanted=wanted, seconds=round(seconds), silent=nodes)

    def on_round_start(self, server_round: int) -> None:
        """Record that a round began."""
        self.watch.on_round_start(server_round)
        self._unsaved = None  # from here on, strategy and clients are not any more as they were after it
        if not self._begun:
            self.memory.enrolled(server_round)
        self._begun = True
        self.folder.event("round", round=server_round)

    def on_rolled_back(self, server_round: int, to_round: int, finite: int, answered: int) -> None:
        """Record that a round's model was useless, and which one takes its place."""
        self.folder.event("rolled-back", round=server_round, to=to_round, finite=finite, answered=answered)
        self.watch.on_rolled_back(server_round, to_round, finite, answered)

    def on_round_end(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Write the round's lines, then the checkpoint that makes them count."""
        self.watch.on_round_over(record)
        if record.decisions:
            self.folder.append(PARTICIPATION, pack_decisions(record.server_round, record.decisions))
        over = record.server_round == self.rounds or bool(self.running.finished)
        if record.measured and (over or self._is_written(record)):
            self.folder.append(
                MEASUREMENTS, measurements(record, self.running.setup.metric.name, *self.running.setup.other_metrics)
            )
        self.folder.append(HISTORY, record.as_line())
        self._unsaved = record.server_round, arrays
        if self.durable or over or time.monotonic() >= self._due:
            self.save()
        self.watch.on_round_end(record, arrays)
        if self._foreign and record.decisions and record.count("failed") == len(record.decisions):
            self._check_failures(record.server_round, record.failures.values())

    def _check_failures(self, server_round: int, reasons: Collection[str]) -> None:
        """End a run whose own plug-ins fail for every asked client.

        Of real clients each says that its code raised an error, and they are three or more, or all that there are.

        Raises:
            ConfigError: it ends.
        """
        raised = sum(keys.LOGGED in reason for reason in reasons)
        enough = raised == len(reasons) and raised >= min(_ENOUGH, len(self.running.members.remaining()))
        if enough or not self.durable:  # simulated clients are this program
            raise ConfigError(f"every client failed in round {server_round}: {min(reasons)}")

    def _is_written(self, record: RoundRecord) -> bool:
        """Return whether clients' measurements of a round are written: a pure function of its number."""
        between = max(1, self.running.setup.shared.evaluate_every)
        evaluated, whole = (max(1, rounds // between) for rounds in (record.server_round, self.rounds))
        every = -(-whole * len(record.measured) // MOST_MEASUREMENTS)
        return every <= 1 or evaluated % every == 1

    def save(self) -> None:
        """Write a checkpoint of the finished round, unless it has one."""
        if self._unsaved is None:
            return
        (server_round, arrays), self._unsaved = self._unsaved, None
        started = time.monotonic()
        # The checkpoint makes both count: a kill at any moment leaves one with the memory of the same round.
        self.memory.save(server_round)
        checkpoint = Checkpoint(server_round, self.initial, arrays, self.running.state(), self._initial_hash)
        kept_rounds = write_checkpoint(self.folder.path, checkpoint, self.durable)
        ended = time.monotonic()
        self.memory.keep_only(kept_rounds)
        wait = max(SECONDS_APART, LARGEST_SHARE * (ended - started)) if len(kept_rounds) >= _FEWEST else 0.0
        self._due = ended + wait
        self.watch.on_checkpoint(server_round)


def measurements(record: RoundRecord, *metrics: str) -> Mapping[str, Any]:
    """Return each client's measurements of a round's model, in columns.

    None in place of values that were not reported.

    Args:
        record: the round.
        metrics: names of the task's metrics.
    """
    names = (keys.LOSS, *metrics, keys.APPEALED)
    columns = {key: [measured.get(key) for measured in record.measured.values()] for key in names}
    return {"round": record.server_round, "client-ids": list(record.measured), **columns}
