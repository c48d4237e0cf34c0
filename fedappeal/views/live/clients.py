"""The clients of a run as its operator sees them: who is connected, takes part, rests, is slow, or was refused."""

import tomllib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from fedappeal.flower.control import UNREGISTERED, Node
from fedappeal.protocol.foreign_text import SHOWN_ID, one_line, printable
from fedappeal.record.decisions import unpack_decisions
from fedappeal.record.looks import shown_as
from fedappeal.system.wording import natural_order
from strategies.rounds.exchange.exchange import SLOW_ALONE
from strategies.rounds.exchange.replies import NO_ANSWER, plain_reason

RECENT = 20
"""Rounds of which a client's decisions are shown."""
MOST_TRACKED = 20_000
MOST_DECISIONS = 200_000
"""Decisions, the latest ones, that are read of a run that has many."""
MOST_SHOWN = 500
MOST_REFUSED = 50
_REASON = 160
_WORD = 16
_BESIDE_THE_RUN = {"online": "connected", "registered": "registered"}
"""The states of nodes beside the run, by their status."""
_ATTENTION = ("failed", "away", "resting", "silent", "slow", "waiting")
"""States of clients that need attention, the worst first; they come first where not all are shown."""
_MOST_ATTENTION = 9

STATES: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("states.toml").read_text("utf-8"))
"""What each state of a client means."""
_NO_REPLY = ("failed", "absent")
_OF_DECISION = {"joined": "joined", "sat-out": "sat out", "left": "left", "surplus": "surplus", "refused": "unused"}


@dataclass
class _ClientEntry:
    """A client's entries in a run's folder."""

    node: str = ""
    examples: int | None = None
    recent: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=RECENT))
    why: tuple[int, str] = (0, "")
    answered: int = 0
    returned: int = 0
    waits: bool = False

    @property
    def reason(self) -> str:
        """Why the client failed when last asked; empty if it did not."""
        return self.why[1] if self.recent and self.why[0] == self.recent[-1][0] else ""


class RunClients:
    """The clients of one run.

    Attributes:
        nodes: those of its SuperLink; None: it is not asked, or does not answer.
        mandatory: rounds in which clients were asked not to opt out.
    """

    def __init__(self) -> None:
        self.nodes: Sequence[Node] | None = None
        self.mandatory: set[int] = set()
        self._clients: dict[str, _ClientEntry] = {}
        self._begun = 0
        self._refused: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()

    def event(self, line: Mapping[str, Any]) -> None:
        """Take up an event of the run's folder."""
        kind, node = line.get("event"), _id(line.get("node", ""))
        self._begun = line.get("round", self._begun)
        if kind == "awaits-approval" and (client := self._client(_id(line.get("client", "")))) is not None:
            client.node, client.waits = node, True
        if kind == "enrolled":
            client = self._client(_id(line.get("client", "")))
            if client is not None:
                client.waits = False
                client.node = node or client.node
                client.returned = self._begun if line.get("returned") else client.returned
                examples = line.get("examples")
                client.examples = examples if isinstance(examples, int) else None
            for key in [key for key in self._refused if node and key[0] == node]:
                del self._refused[key]
        elif kind in ("refused", "unavailable"):
            reason = one_line(line.get("reason", ""), _REASON)
            entry = self._refused.pop((node, reason), {"times": 0})
            facts = {"node": node, "client": _id(line.get("client", "")), "reason": reason, "kind": kind}
            self._refused[node, reason] = {**facts, "times": entry["times"] + 1, "time": line.get("time")}
            while len(self._refused) > MOST_REFUSED:
                self._refused.popitem(last=False)

    def decided(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Take up lines of decisions; of very many the latest."""
        for line in _latest(lines):
            client = self._client(_id(line.get("client-id", "")))
            server_round, word = line.get("round"), printable(line.get("decision", ""), _WORD)
            if client is None or type(server_round) is not int:
                continue
            client.recent.append((server_round, word))
            if word not in _NO_REPLY:
                client.answered = server_round

    def failed(self, server_round: int, failures: Mapping[str, Any]) -> None:
        """Take up why clients failed in a round."""
        for name, reason in failures.items():
            if (client := self._client(_id(name))) is not None:
                client.why = server_round, plain_reason(one_line(reason, _REASON))

    def section(self, last: Mapping[int, str] | None = None) -> dict[str, Any]:
        """Return the page's rows, those that need attention first, and the numbers of clients by state.

        Args:
            last: of a federation's page, which lists all members: what a node did last in another run, by its id.
        """
        nodes, listed = self.nodes_by_client(), _BESIDE_THE_RUN
        taken = {node.node_id for node in nodes.values()}
        rows = [
            self._row(name, self._clients[name], nodes.get(name)) for name in sorted(self._clients, key=natural_order)
        ]
        refused = {node for node, _ in self._refused}
        if last is not None:
            listed, refused = {**listed, "offline": "offline"}, set()
        for node in self.nodes or ():
            if node.node_id not in taken and str(node.node_id) not in refused and node.status in listed:
                row = _row_of(_id(node.client_id), listed[node.status], node)
                rows.append({**row, "why": (last or {}).get(node.node_id, "")})
        counts = Counter(row["state"] for row in rows)
        troubled = [row for state in _ATTENTION for row in rows if row["state"] == state]
        rows.sort(key=lambda row: row["state"] not in _ATTENTION)
        return {
            "rows": rows[:MOST_SHOWN],
            "attention": troubled[:_MOST_ATTENTION],
            "total": len(rows),
            "counts": dict(counts),
            "online": sum(node.status == "online" for node in self.nodes) if self.nodes is not None else None,
        }

    @property
    def ids(self) -> Iterable[str]:
        """The run's client-ids."""
        return self._clients

    def nodes_by_client(self) -> dict[str, Node]:
        """Return the SuperLink's nodes by the client-ids that they have in the run."""
        by_node = {str(node.node_id): node for node in self.nodes or ()}
        by_id = {node.client_id: node for node in self.nodes or () if node.status != UNREGISTERED}
        pairs = ((name, by_node.get(client.node) or by_id.get(name)) for name, client in self._clients.items())
        return {name: node for name, node in pairs if node is not None}

    def last_decisions(self) -> Iterator[tuple[int, str, int]]:
        """Yield the id of each node that decided, its last decision, and the round of that."""
        for client, node in self.nodes_by_client().items():
            for number, word in list(self._clients[client].recent)[-1:]:
                yield node.node_id, _OF_DECISION.get(word, word), number

    def refused(self) -> list[dict[str, Any]]:
        """Return the nodes that were refused or are not available, the latest first."""
        names = {str(node.node_id): printable(node.name, SHOWN_ID) for node in self.nodes or ()}
        return [{**entry, "name": names.get(entry["node"], "")} for entry in reversed(self._refused.values())]

    def _row(self, name: str, client: _ClientEntry, node: Node | None) -> dict[str, Any]:
        recent = [shown_as(word, number in self.mandatory) for number, word in client.recent]
        facts = {"recent": recent, "why": client.reason, "answered": client.answered, "examples": client.examples}
        return {**_row_of(name, self._state(client, node), node), **facts}

    def _state(self, client: _ClientEntry, node: Node | None) -> str:
        """Return a client's state, of `STATES`, or an unknown decision's word."""
        number, last = client.recent[-1] if client.recent else (0, "")
        if last == "left" and number > client.returned:
            return "left"
        if node is not None and node.status == UNREGISTERED:
            return UNREGISTERED
        if node is not None and node.status != "online":
            return "away"
        if client.waits:
            return "waiting"
        if last in _NO_REPLY:
            if client.reason.startswith(SLOW_ALONE):
                return "slow"
            if last == "absent" or client.reason.startswith(NO_ANSWER):
                return "silent" if node is None else "resting"
            return "failed"
        return _OF_DECISION.get(last, last) if last not in ("", "left") else "enrolled"

    def _client(self, name: str) -> _ClientEntry | None:
        """Return a client by its id; None if there are too many."""
        if name not in self._clients and (not name or len(self._clients) >= MOST_TRACKED):
            return None
        return self._clients.setdefault(name, _ClientEntry())


def client_names(events: Sequence[Mapping[str, Any]], nodes: Sequence[Node] | None) -> dict[str, str]:
    """Return the names of a run's clients by client-id, without ambiguous ones.

    Where the SuperLink has one that is no other's.

    Args:
        events: of the run's folder.
        nodes: of the SuperLink.
    """
    clients = RunClients()
    clients.nodes = nodes
    for line in events:
        clients.event(line)
    names = {client: printable(node.name, SHOWN_ID) for client, node in clients.nodes_by_client().items()}
    times = Counter([*names.values(), *clients.ids])
    return {client: name for client, name in names.items() if name and times[name] == 1}


def _latest(lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Return the decisions of the latest lines, the earliest first."""
    latest: list[list[dict[str, Any]]] = []
    room = MOST_DECISIONS
    for line in reversed(lines):
        with suppress(ValueError):
            decisions = unpack_decisions(line)
            room -= len(decisions)
            if room < 0 and latest:
                break
            latest.append(decisions)
    return chain.from_iterable(reversed(latest))


def _row_of(name: str, state: str, node: Node | None) -> dict[str, Any]:
    row = {"client": name, "state": state, "name": "", "seen": "", "recent": [], "why": "", "answered": 0, "node": ""}
    if node is not None:
        row |= {"name": printable(node.name, SHOWN_ID), "seen": printable(node.last_seen, 40)}
        row |= {"node": str(node.node_id) if node.status != UNREGISTERED else ""}
    return row


def _id(value: object) -> str:
    return printable(value, SHOWN_ID)
