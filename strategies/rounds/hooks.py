"""Round records, and hooks by which observers of a run receive them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedappeal.protocol.foreign_text import one_line
from fedappeal.protocol.keys import DataProblem
from strategies.rounds.exchange.members import Member

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

log = logging.getLogger("fedappeal")


@dataclass
class RoundRecord:
    """Record of one round.

    Attributes:
        server_round: counted from 1.
        decisions: what became of each client that was asked: ``joined``, ``sat-out``, ``left``, ``surplus``
            (joined after enough had), ``refused`` (joined, but the strategy does not use its update), or
            ``failed``.
        failures: for each that failed, why.
        metrics: numbers for the history (evaluation, and what the strategy adds).
        measured: what each client that answered the evaluation reported, by client-id, then by key.
        evaluated: clients that answered the evaluation; ``expected``: clients that were asked.
        unusable: clients whose answer to the evaluation, an error or a reply, is left out.
        bytes_up: bytes of the replies' contents; ``bytes_down``: of the instructions'.
        seconds: wall time.
        mandatory: whether clients were asked not to opt out.
    """

    server_round: int
    decisions: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluated: int = 0
    expected: int = 0
    unusable: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    mandatory: bool = False

    def count(self, decision: str) -> int:
        """Number of clients with that decision."""
        return sum(d == decision for d in self.decisions.values())

    def fail(self, client_id: str, reason: str) -> None:
        """Count a client whose reply is left out or did not come, and log why."""
        self.decisions[client_id] = "failed"
        self.failures[client_id] = reason = one_line(reason)  # a client may have written parts of it
        log.warning("round %d: %s left out: %s", self.server_round, client_id, reason)

    def add_failure(self, client_id: str, reason: str) -> None:
        """Add a reason to those of a client, whatever it decided."""
        self.failures[client_id] = one_line("; ".join(filter(None, (self.failures.get(client_id), reason))))

    def count_traffic(self, up: int, down: int) -> None:
        """Add an exchange's bytes."""
        self.bytes_up += up
        self.bytes_down += down

    def as_line(self) -> Mapping[str, object]:
        """Return the round as one line of the history."""
        line: dict[str, object] = {
            "round": self.server_round,
            "asked": len(self.decisions),
            "joined": self.count("joined"),
            "sat_out": self.count("sat-out"),
            "left": self.count("left"),
            "failed": self.count("failed"),
            "surplus": self.count("surplus"),
            "mandatory": self.mandatory,
            **self.metrics,
            "evaluated": self.evaluated,
            "expected": self.expected,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": round(self.seconds, 4),
        }
        return line | ({"failures": self.failures} if self.failures else {})


class Hooks:
    """Observer of a run; override what you need.

    An exception in a hook ends the run.
    """

    def on_enrolled(self, member: Member, enrolled: int) -> None:
        """A client answered the roll call; ``enrolled`` clients have."""

    def on_refused(self, node_id: int, reason: str) -> None:
        """A node's answer to the roll call does not fit the run."""

    def on_data_refused(self, node_id: int, client_id: str, problem: DataProblem) -> None:
        """A client's own data do not fit the run; by default an ordinary refusal."""
        self.on_refused(node_id, f"client {client_id}: {problem.text}")

    def on_unavailable(self, node_id: int, times: int, seconds: float, reason: str) -> None:
        """A node was called and is not available.

        Args:
            node_id: the node.
            times: how often it was so, one call after another.
            seconds: until it is called again.
            reason: what the error says.
        """

    def on_open_federation(self) -> None:
        """The run has a node whose key the operator did not register: any process can be such a node."""

    def on_waiting(self, enrolled: int, wanted: int, seconds: float, silent: Sequence[int]) -> None:
        """The run has waited for its first clients for a while.

        Args:
            enrolled: clients that have answered the roll call.
            wanted: clients that have to.
            seconds: how long it waits yet.
            silent: nodes that are connected and have not answered.
        """

    def on_round_start(self, server_round: int) -> None:
        """A round begins."""

    def on_round_over(self, record: RoundRecord) -> None:
        """A round is over and not recorded yet; ``record.metrics`` takes further numbers for the history."""

    def on_round_end(self, record: RoundRecord, arrays: "ArrayRecord") -> None:
        """A round is over; ``arrays`` is the new global model."""

    def on_rolled_back(self, server_round: int, to_round: int, finite: int, answered: int) -> None:
        """The model of a round was useless: the run takes up an earlier one.

        Args:
            server_round: the round.
            to_round: the round after which the model was good; 0: the initial model.
            finite: clients that answered the evaluation with a finite loss.
            answered: clients that answered it, an error included.
        """

    def on_checkpoint(self, server_round: int) -> None:
        """The folder holds a checkpoint of this round: the run can continue after it."""
