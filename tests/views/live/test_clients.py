"""The clients as the operator sees them: what each state is made of."""

from typing import Any

import pytest

from fedappeal.flower.control import Node
from fedappeal.record.decisions import pack_decisions
from fedappeal.views.live import clients as module
from fedappeal.views.live.clients import MOST_SHOWN, RECENT, STATES, RunClients, client_names
from strategies.rounds.exchange.exchange import NO_ANSWER, SLOW_ALONE

SEEN = "2026-11-22T09:00:59+00:00"


def node(number: int, status: str = "online", client: str = "", name: str = "") -> Node:
    return Node(client or f"key-{number}", number, name, status, "2026-11-21T18:41:07+00:00", SEEN)


def enrolled(clients: RunClients, **nodes: int) -> RunClients:
    for name, number in nodes.items():
        clients.event({"event": "enrolled", "client": name, "node": str(number), "examples": 10 * number})
    return clients


def rows(clients: RunClients) -> dict[str, dict[str, Any]]:
    return {row["client"]: row for row in clients.section()["rows"]}


def test_names_of_clients_are_the_superlinks_where_they_are_no_other_clients() -> None:
    enrolments = {"key-1": 1, "key-2": 2, "key-3": 3, "key-4": 4, "own": 5, "gone": 6}
    events = [{"event": "enrolled", "client": name, "node": str(number)} for name, number in enrolments.items()]
    nodes = [
        node(1, name="anna"),
        node(2, name="ben"),
        node(3, name="ben"),
        node(4, name="gone"),
        node(5, name="key-1"),
    ]
    assert client_names(events, [*nodes, node(9, name="stranger")]) == {"key-1": "anna"}
    assert client_names(events, None) == {}


def test_one_that_waits_for_its_owners_approval_is_shown_so_until_it_takes_part() -> None:
    clients = RunClients()
    clients.event({"event": "awaits-approval", "client": "anna", "node": "3"})
    assert (rows(clients)["anna"]["state"], clients.refused()) == ("waiting", [])
    clients.nodes = [node(3, status="offline")]
    assert rows(clients)["anna"]["state"] == "away"
    assert rows(enrolled(clients, anna=3))["anna"]["state"] == "away"
    clients.nodes = [node(3)]
    assert rows(clients)["anna"]["state"] == "enrolled"


@pytest.mark.parametrize(
    ("decision", "why", "status", "state"),
    [
        ("joined", "", "online", "joined"),
        ("sat-out", "", "online", "sat out"),
        ("surplus", "", "online", "surplus"),
        ("refused", "", "online", "unused"),
        ("left", "", "online", "left"),
        ("left", "", "offline", "left"),
        ("failed", NO_ANSWER, "online", "resting"),  # as earlier versions wrote it
        ("absent", NO_ANSWER, "online", "resting"),
        ("absent", "the message could not be sent", "online", "resting"),
        ("absent", NO_ANSWER, "", "silent"),
        ("absent", NO_ANSWER, "offline", "away"),
        ("absent", f"{SLOW_ALONE}: not waited for after 3.0 s", "online", "slow"),
        ("failed", "Error: Node Unavailable - The destination node", "online", "resting"),
        ("failed", "Error: Message Unavailable - The requested message could not be found", "online", "resting"),
        ("failed", NO_ANSWER, "", "silent"),
        ("failed", NO_ANSWER, "offline", "away"),
        ("failed", f"{SLOW_ALONE}: not waited for after 3.0 s", "online", "slow"),
        ("failed", "loss = nan", "online", "failed"),
        ("joined", "", "offline", "away"),
        ("", "", "online", "enrolled"),
        ("", "", "unregistered", "unregistered"),
        ("failed", NO_ANSWER, "unregistered", "unregistered"),
    ],
)
def test_the_state_of_a_client(decision: str, why: str, status: str, state: str) -> None:
    clients = enrolled(RunClients(), anna=7)
    clients.nodes = [node(7, status)] if status else None
    if decision:
        clients.decided([pack_decisions(3, {"anna": decision})])
    if why:
        clients.failed(3, {"anna": why})
    section = clients.section()
    [row] = section["rows"]
    assert row["state"] == state
    assert state in STATES
    assert section["counts"] == {state: 1}


def test_the_clients_that_need_attention_stand_first_and_the_worst_before_others() -> None:
    clients = enrolled(RunClients(), **{f"c{number}": number for number in range(12)})
    clients.nodes = [node(number, "offline" if number == 3 else "online") for number in range(12)]
    decisions = {f"c{number}": "failed" if 5 < number < 10 else "joined" for number in range(11)}
    clients.decided([pack_decisions(3, decisions)])
    clients.failed(3, {"c6": NO_ANSWER, "c7": "loss = nan", "c8": f"{SLOW_ALONE}: x", "c9": NO_ANSWER})
    clients.event({"event": "awaits-approval", "client": "c11", "node": "11"})
    said = [(row["client"], row["state"]) for row in clients.section()["attention"]]
    assert said == [
        ("c7", "failed"), ("c3", "away"), ("c6", "resting"), ("c9", "resting"), ("c8", "slow"), ("c11", "waiting")
    ]  # fmt: skip


def test_a_client_that_came_back_has_not_left_until_it_leaves_again() -> None:
    clients = enrolled(RunClients(), anna=7)
    clients.event({"event": "round", "round": 3})
    clients.event({"event": "enrolled", "client": "anna", "node": "7", "returned": True})
    clients.event({"event": "round", "round": 4})
    clients.decided([pack_decisions(3, {"anna": "left"})])  # a page that is opened later reads the events first
    assert rows(clients)["anna"]["state"] == "enrolled"
    clients.event({"event": "enrolled", "client": "anna", "node": "8"})
    assert rows(clients)["anna"]["state"] == "enrolled"
    clients.decided([pack_decisions(4, {"anna": "left"})])
    assert rows(clients)["anna"]["state"] == "left"


def test_a_paused_client_that_answers_again_does_not_rest_any_more() -> None:
    clients = enrolled(RunClients(), anna=7)
    clients.nodes = [node(7)]
    clients.decided([pack_decisions(1, {"anna": "joined"}), pack_decisions(2, {"anna": "failed"})])
    clients.failed(2, {"anna": NO_ANSWER})
    assert rows(clients)["anna"]["state"] == "resting"
    assert (rows(clients)["anna"]["answered"], rows(clients)["anna"]["why"]) == (1, NO_ANSWER)
    clients.decided([pack_decisions(3, {"anna": "sat-out"})])
    row = rows(clients)["anna"]
    assert (row["state"], row["answered"], row["why"]) == ("sat out", 3, "")
    assert row["recent"] == ["joined", "failed", "sat-out"]


def test_clients_have_the_names_that_their_operator_gave_them() -> None:
    """By the node that answered for the client; without it, by the key's fingerprint, which then is the client-id."""
    clients = enrolled(RunClients(), anna=7)
    clients.event({"event": "enrolled", "client": "key-8"})
    clients.nodes = [node(7, name="anna's laptop"), node(8, name="bert's phone")]
    row_of = rows(clients)
    assert (row_of["anna"]["name"], row_of["anna"]["seen"]) == ("anna's laptop", SEEN)
    assert (row_of["anna"]["examples"], row_of["key-8"]["examples"]) == (70, None)
    assert row_of["key-8"]["name"] == "bert's phone"


def test_nodes_beside_the_run_are_listed_too() -> None:
    clients = enrolled(RunClients(), anna=7)
    clients.nodes = [node(7), node(8), node(9, "registered"), node(10, "offline"), node(11, "unregistered"), node(12)]
    clients.event({"event": "refused", "node": "12", "reason": "another protocol"})
    assert {name: row["state"] for name, row in rows(clients).items()} == {
        "anna": "enrolled",
        "key-8": "connected",
        "key-9": "registered",
    }
    assert clients.section()["online"] == 3


def test_refusals_are_counted_named_and_bounded() -> None:
    clients = RunClients()
    clients.nodes = [node(5, name="carla")]
    for time in range(3):
        clients.event({"event": "refused", "node": "5", "client": "c", "reason": "another\nprotocol", "time": time})
    clients.event({"event": "unavailable", "node": "6", "reason": "not available", "times": 2, "time": 9})
    latest, first = clients.refused()
    assert (latest["node"], latest["kind"]) == ("6", "unavailable")
    assert first == {
        **{"node": "5", "client": "c", "name": "carla", "kind": "refused", "reason": "another protocol"},
        **{"times": 3, "time": 2},
    }
    for number in range(1000):
        clients.event({"event": "refused", "node": str(number), "reason": "x" * 10_000})
    assert len(clients.refused()) == module.MOST_REFUSED
    assert max(len(row["reason"]) for row in clients.refused()) == 160


def test_one_that_is_enrolled_after_all_is_not_refused_any_more() -> None:
    clients = RunClients()
    clients.event({"event": "refused", "node": "5", "reason": "another version"})
    enrolled(clients, anna=5)
    assert clients.refused() == []


def test_what_is_shown_is_bounded_and_what_needs_attention_comes_first() -> None:
    clients = RunClients()
    names = [f"client-{number:04d}" for number in range(MOST_SHOWN + 100)]
    for server_round in range(1, RECENT + 10):
        clients.decided([pack_decisions(server_round, dict.fromkeys(names, "joined") | {names[-1]: "failed"})])
    clients.failed(server_round, {names[-1]: "it broke"})
    section = clients.section()
    assert (section["total"], len(section["rows"])) == (MOST_SHOWN + 100, MOST_SHOWN)
    assert section["rows"][0]["client"] == names[-1]
    assert section["counts"] == {"joined": MOST_SHOWN + 99, "failed": 1}
    assert {len(row["recent"]) for row in section["rows"]} == {RECENT}


def test_of_very_many_decisions_the_latest_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DECISIONS", 5)
    clients = RunClients()
    clients.decided([pack_decisions(n, {"a": "joined", "b": "left" if n == 1 else "joined"}) for n in range(1, 5)])
    assert rows(clients)["a"]["recent"] == ["joined", "joined"]
    assert rows(clients)["b"]["recent"] == ["joined", "joined"]


def test_damaged_lines_of_decisions_are_left_out() -> None:
    clients = RunClients()
    damaged = {"round": 1, "asked": ["a"], "decisions": ["jj"], "legend": {"j": "joined"}}
    clients.decided(
        [damaged, {"round": "x", "client-id": "b", "decision": "joined"}, pack_decisions(2, {"c": "joined"})]
    )
    assert {name: row["recent"] for name, row in rows(clients).items() if row["recent"]} == {"c": ["joined"]}
