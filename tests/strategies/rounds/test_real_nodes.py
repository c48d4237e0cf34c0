"""The roll call of real nodes: each client-id has one key, places are few, and calls in vain become rare."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from client.state.own_key import own_key, proof_of
from fedappeal.protocol import keys, proof
from strategies import FedALIGN, FedAvg
from strategies.rounds.exchange.calls import FEW, LONGEST_PAUSE
from strategies.rounds.exchange.roll_call import MOST_TOLD, RollCallError
from tests.grid import MemoryGrid, Volunteer, Watch, run

TOLD = ConfigRecord({keys.RUN_KEY: "run"})


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def id_of(key: ec.EllipticCurvePrivateKey) -> str:
    return proof.client_id_of(proof.public_pem(key.public_key()))


class RealGrid(MemoryGrid):
    """Nodes whose connections have keys; those with a name were registered by the operator.

    Attributes:
        activated: when a node last came online.
    """

    def __init__(self, nodes: dict[int, Any] | None = None) -> None:
        super().__init__(nodes)
        self.keys: dict[int, ec.EllipticCurvePrivateKey] = {}
        self.names: dict[int, str] = {}
        self.activated: dict[int, str] = {}

    def get_nodes(self) -> Iterable[NodeInfo]:
        for node in self.nodes:
            connection = getattr(self.nodes[node], "connection", None) or new_key()
            key = self.keys.setdefault(node, connection).public_key()
            since = f"2026-01-01T00:00:{node:06}"
            yield NodeInfo(
                node_id=node,
                public_key=proof.public_pem(key),
                name=self.names.get(node),
                registered_at=since,
                last_activated_at=self.activated.get(node, since),
            )


class Signing:
    """A client that proves its own key; ``name``: what it calls its connection, empty: by the key of that."""

    def __init__(self, name: str, key: ec.EllipticCurvePrivateKey, **said: Any) -> None:
        self.volunteer, self.key, self.connection = Volunteer(name, **said), key, new_key()
        self.calls: list[Message] = []
        self.name = ""

    def __call__(self, message: Message) -> Message | None:
        reply = self.volunteer(message)
        if reply is not None and message.metadata.message_type == "query":
            self.calls.append(message)
            asked = message.content.config_records[keys.CONFIG]
            node = self.name or proof.fingerprint(proof.public_pem(self.connection.public_key()))
            stated = proof.statement(str(asked[keys.NONCE]), str(asked[keys.RUN_KEY]), node, self.volunteer.name)
            info = reply.content.config_records[keys.INFO]
            info[keys.PUBLIC_KEY] = proof.public_pem(self.key.public_key()).decode()
            info[keys.SIGNATURE] = proof.sign(self.key, stated)
            reply.content[keys.INFO] = info
        return reply


def federate(grid: MemoryGrid, rounds: int, watch: Watch | None = None, **settings: Any) -> Watch:
    return run(FedAvg(evaluate_every=0, **settings), grid, rounds, watch, roll_call_config=TOLD)[1]


def slow(grid: MemoryGrid, seconds: float = 2.0) -> MemoryGrid:
    """Let time pass: each training takes some seconds."""
    grid.delay = lambda node, message: seconds if message.metadata.message_type == "train" else 0.0
    return grid


def test_each_call_has_a_nonce_of_its_own() -> None:
    grid = RealGrid({10: Volunteer("a"), 11: Volunteer("b")})
    federate(grid, 1, min_clients=2)
    nonces = [m.content.config_records[keys.CONFIG][keys.NONCE] for m in grid.sent("query")]
    assert len(set(nonces)) == 2
    assert all(proof.is_nonce(str(nonce)) for nonce in nonces)


def test_a_client_that_comes_back_under_another_node_id_proves_itself_and_trains_on() -> None:
    key = new_key()
    grid = slow(RealGrid({10: Signing("alice", key), 11: Volunteer("b")}))
    back = Watch(before={2: lambda: (grid.nodes.pop(10), grid.nodes.update({12: Signing("alice", key)}))})  # type: ignore[dict-item, func-returns-value]
    watch = federate(grid, 3, back)
    assert [client for client, _ in watch.enrolled] == ["alice", "b", "alice"]
    assert [sorted(record.decisions) for record in watch.records] == [["alice", "b"]] * 3
    assert [12 in grid.asked(number) for number in (1, 2, 3)] == [False, True, True]
    assert watch.refused == {}


def test_a_node_that_names_another_node_as_its_own_is_checked_all_the_same() -> None:
    thief = Volunteer("4711")

    def forged(message: Message) -> Message | None:
        reply = thief(message)
        assert reply is not None
        reply.metadata.__dict__["_src_node_id"] = 4711  # the name of a client that is known by its node
        return reply

    grid = slow(RealGrid({10: Signing("4711", new_key()), 11: Volunteer("b")}))
    watch = federate(grid, 2, Watch(before={2: lambda: grid.nodes.update({12: forged})}))
    assert list(watch.refused) == [12]
    assert watch.refused[12].startswith("client-id '4711' belongs to another key")
    assert 12 not in grid.asked(2)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("thief", [Volunteer("alice", left=False), Signing("alice", new_key(), left=False)])
def test_another_key_is_refused_and_she_is_not_disturbed(online: bool, thief: Any) -> None:
    alice = Signing("alice", new_key())
    grid = slow(RealGrid({10: alice, 11: Volunteer("b")}))

    def attack() -> None:
        grid.nodes[12] = thief
        if not online:
            del grid.nodes[10]

    watch = federate(grid, 3, Watch(before={2: attack, 3: lambda: grid.nodes.update({10: alice})}))
    assert list(watch.refused) == [12]
    assert watch.refused[12].startswith("client-id 'alice' belongs to another key (key-")
    assert [12 in grid.asked(number) for number in (1, 2, 3)] == [False] * 3
    assert [10 in grid.asked(number) for number in (1, 2, 3)] == [True, online, True]
    assert len(alice.calls) == 1, "she need not answer again"


def test_one_who_left_is_brought_back_by_her_own_key_alone() -> None:
    key = new_key()
    grid = slow(RealGrid({10: Signing("alice", key, decision=-1), 11: Volunteer("b")}))
    watch = Watch(
        before={
            2: lambda: grid.nodes.update({12: Volunteer("alice", left=False)}),
            4: lambda: grid.nodes.update({13: Signing("alice", key, left=False)}),
        }
    )
    federate(grid, 5, watch)
    decisions = [record.decisions.get("alice") for record in watch.records]
    assert decisions == ["left", None, None, "joined", "joined"]


def test_one_who_left_is_asked_again_from_the_round_on_before_which_she_comes_online_anew() -> None:
    alice, other = Volunteer("alice", decision=-1), Volunteer("b")
    grid = slow(RealGrid({10: alice, 11: other}))

    def change_her_mind() -> None:
        alice.decision, alice.gone = 1, False

    def come_online_anew() -> None:
        grid.activated |= {10: "later", 11: "later"}

    federate(grid, 6, watch := Watch(before={2: come_online_anew, 3: change_her_mind, 5: come_online_anew}))
    decisions = [record.decisions.get("alice") for record in watch.records]
    assert decisions == ["left", None, None, None, None, None], "the same moment says nothing new"
    alice.decision, alice.gone, grid.activated = -1, False, {}

    def come_back() -> None:
        change_her_mind()
        grid.activated |= {10: "much later"}

    # A round that can begin does not wait for her answer to the call.
    for seconds, first in ((0.0, 4), (0.3, 5)):
        grid.delay = lambda node, message, call=seconds: 2.0 if message.metadata.message_type == "train" else call
        federate(grid, 6, watch := Watch(before={4: come_back}))
        decisions = [record.decisions.get("alice") for record in watch.records]
        assert decisions == ["left", *[None] * (first - 2), *["joined"] * (7 - first)]
        assert watch.enrolled == [("alice", 1), ("b", 2), ("alice", 2)]
        alice.decision, alice.gone, grid.activated = -1, False, {}


def test_one_whose_owner_approves_the_run_late_joins_the_rounds_after_it() -> None:
    anna = Signing("anna", new_key(), approval="waiting")
    grid, waits = slow(RealGrid({10: Volunteer("a"), 11: Volunteer("b"), 12: anna})), list[tuple[int, str]]()

    def approved() -> None:
        anna.volunteer.approval = ""
        grid.activated |= {12: "later"}

    watch = Watch(before={3: approved})
    watch.on_awaits_approval = lambda node, client: waits.append((node, client))  # type: ignore[method-assign]
    federate(grid, 4, watch, min_clients=2)
    assert waits == [(12, "anna")], "it is called once, and again when it comes online anew"
    assert [sorted(record.decisions) for record in watch.records] == [
        ["a", "b"],
        ["a", "b"],
        ["a", "anna", "b"],
        ["a", "anna", "b"],
    ]
    assert all(not record.failures for record in watch.records), "to wait is no fault"
    assert watch.refused == {}
    assert [client for client, _ in watch.enrolled] == ["a", "b", "anna"]


def test_a_client_that_waits_or_declines_counts_for_no_minimum_and_the_end_names_it() -> None:
    for word, why in (("waiting", "it waits for its owner's approval"), ("declined", "its owner has not approved")):
        with pytest.raises(RollCallError, match=f"1 of 2 clients .*client anna: {why}"):
            federate(RealGrid({10: Volunteer("a"), 12: Volunteer("anna", approval=word)}), 1, min_clients=2)


def test_an_id_cannot_be_made_to_wait_by_another_key() -> None:
    grid = slow(RealGrid({10: Signing("alice", new_key())}))
    thief = Watch(before={2: lambda: grid.nodes.update({12: Volunteer("alice", approval="waiting")})})
    watch = federate(grid, 3, thief)
    assert watch.refused[12].startswith("client-id 'alice' belongs to another key")
    assert [10 in grid.asked(number) for number in (1, 2, 3)] == [True] * 3


def test_a_node_that_comes_online_anew_each_time_brings_back_nobody_and_is_rarely_called() -> None:
    """The one who left says each time that this holds; the other one has not left, and is not asked again."""
    alice, other = Volunteer("alice", decision=-1), Volunteer("b")
    grid = slow(RealGrid({10: alice, 11: other}), 1.0)

    def come_online_anew(number: int) -> Any:
        return lambda: grid.activated.update({10: str(number), 11: str(number)})

    watch = federate(grid, 60, Watch(before={number: come_online_anew(number) for number in range(2, 60)}))
    assert [number for number, record in enumerate(watch.records, 1) if "alice" in record.decisions] == [1]
    calls = {node: sum(m.metadata.dst_node_id == node for m in grid.sent("query")) for node in (10, 11)}
    assert calls[11] == 1
    assert 3 <= calls[10] <= 8, "pauses of 1, 2, 4 and more seconds"
    assert watch.enrolled == [("alice", 1), ("b", 2)], "who has left arrives no second time"


@pytest.mark.parametrize("silent", [True, False])
def test_one_who_left_and_comes_online_anew_each_time_is_rarely_asked_whatever_she_says(silent: bool) -> None:
    """She never answers, or says each time that she is back, and leaves again as soon as she is asked."""
    alice = Volunteer("alice", decision=-1)
    grid = slow(RealGrid({10: alice, 11: Volunteer("b")}), 1.0)
    train = grid.delay

    def come_online_anew(number: int) -> Any:
        def come() -> None:
            alice.gone = False
            grid.activated[10] = str(number)
            if silent:
                grid.delay = lambda node, message: train(node, message) or (1e9 if node == 10 else 0.0)

        return come

    watch = federate(grid, 60, Watch(before={number: come_online_anew(number) for number in range(2, 60)}))
    calls = sum(m.metadata.dst_node_id == 10 for m in grid.sent("query"))
    assert 3 <= calls <= 8, "pauses of 1, 2, 4 and more seconds"
    asked = sum("alice" in record.decisions for record in watch.records)
    assert asked == (1 if silent else calls)


def test_a_node_that_came_online_anew_before_it_answered_is_called_again_without_waiting() -> None:
    """Its process took the call and was killed; the next one, with the same key, has no message of it."""
    alice, other = Volunteer("alice"), Volunteer("b")
    grid = slow(RealGrid({10: alice, 11: other}))
    train = grid.delay
    grid.delay = lambda node, message: 1e9 if node == 10 else train(node, message)

    def come_back() -> None:
        grid.delay = train
        grid.activated[10] = "later"

    watch = Watch(before={3: come_back})
    federate(grid, 6, watch, start_timeout=300.0, round_timeout=5.0)
    assert ["alice" in record.decisions for record in watch.records] == [False] * 3 + [True] * 3
    assert sum(m.metadata.dst_node_id == 10 for m in grid.sent("query")) == 2
    assert grid.clock() < 30.0
    assert watch.refused == {}


def test_a_signature_for_another_node_is_of_no_use() -> None:
    """A server that another federation's client trusts passes its signature on; the node in it is the wrong one."""
    alice = Signing("alice", new_key())
    grid = RealGrid({10: alice, 11: Volunteer("b")})

    def passed_on(message: Message) -> Message | None:
        as_hers = Message(message.content, 10, "query")
        reply = alice(as_hers)
        return None if reply is None else Message(reply.content, reply_to=message)

    grid.nodes = {11: Volunteer("b"), 12: passed_on}
    watch = federate(grid, 1)
    assert watch.refused == {
        12: "the proof that client-id 'alice' is this node's does not hold: the signature does not fit"
    }


class Stock:
    """A ClientApp under a stock SuperNode, which knows neither the key nor the server of its connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, message: Message) -> Message | None:
        reply = Volunteer("alice", left=False)(message)
        if reply is not None and message.metadata.message_type == "query":
            asked = message.content.config_records[keys.CONFIG]
            info = reply.content.config_records[keys.INFO]
            info.update(proof_of(asked, "alice", self.folder, RecordDict()))
            reply.content[keys.INFO] = info
        return reply


def test_a_hostile_server_gets_no_proof_of_a_stock_supernode_that_another_server_takes(tmp_path: Path) -> None:
    """It gives its own client the node id that it has here, and passes on this roll call and the answer."""
    alice = Signing("alice", own_key(tmp_path))
    grid = slow(RealGrid({10: alice, 11: Volunteer("b")}))
    watch = federate(grid, 3, Watch(before={2: lambda: grid.nodes.update({12: Stock(tmp_path)})}))
    assert [client for client, _ in watch.enrolled] == ["alice", "b"]
    assert watch.refused[12].startswith("client-id 'alice' belongs to another key")
    assert [10 in grid.asked(number) for number in (1, 2, 3)] == [True] * 3


def test_a_proof_of_an_earlier_version_that_names_its_node_id_counts_for_nothing() -> None:
    alice = Signing("alice", new_key())
    alice.name = "10"
    grid = RealGrid({10: alice, 11: Volunteer("b")})
    seen: list[str] = []
    watch = Watch()
    watch.on_enrolled = lambda member, enrolled: seen.append(member.key_id)  # type: ignore[method-assign]
    federate(grid, 1, watch)
    assert id_of(alice.connection) in seen
    assert id_of(alice.key) not in seen


def test_a_registered_node_is_known_by_its_own_key_whatever_it_signs() -> None:
    grid = RealGrid({10: Signing("alice", new_key()), 11: Volunteer("b")})
    grid.keys[10], grid.names[10] = new_key(), "alice's laptop"
    seen: list[str] = []
    watch = Watch()
    watch.on_enrolled = lambda member, enrolled: seen.append(member.key_id)  # type: ignore[method-assign]
    federate(grid, 1, watch)
    assert id_of(grid.keys[10]) in seen


def test_a_fingerprint_as_an_id_is_that_keys_alone() -> None:
    mine, hers = new_key(), new_key()
    grid = RealGrid({10: Volunteer(id_of(mine)), 11: Volunteer(id_of(hers))})
    grid.keys = {10: mine, 11: mine}
    watch = federate(grid, 1)
    assert [client for client, _ in watch.enrolled] == [id_of(mine)]
    assert watch.refused[11].startswith(f"client-id '{id_of(hers)}' is another key's than this node's")


@pytest.mark.parametrize("client_id", ["x" * 65, ".hidden", "-rf", "a/b", "\x1b[2J", "[red]alice"])
def test_an_id_that_no_file_or_terminal_should_see_is_refused_before_it_is_anyones(client_id: str) -> None:
    grid = RealGrid({10: Volunteer("a"), 11: Volunteer(client_id)})
    watch = federate(grid, 1)
    assert watch.refused[11].isprintable()
    assert "is not allowed: 1 to 64 letters, digits" in watch.refused[11]


def test_half_a_proof_is_refused() -> None:
    class Half(Signing):
        def __call__(self, message: Message) -> Message | None:
            reply = super().__call__(message)
            if reply is not None and message.metadata.message_type == "query":
                reply.content[keys.INFO] = ConfigRecord(
                    {k: v for k, v in reply.content.config_records[keys.INFO].items() if k != keys.SIGNATURE}
                )
            return reply

    watch = federate(RealGrid({10: Volunteer("a"), 11: Half("b", new_key())}), 1)
    assert watch.refused == {11: "'public-key' has to be a text and 'signature' bytes"}


def test_an_answer_that_makes_anything_raise_concerns_its_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*arguments: object) -> str:
        raise RecursionError("deep")

    monkeypatch.setattr(proof, "signer_of", raising)
    watch = federate(RealGrid({10: Volunteer("a"), 11: Signing("b", new_key())}), 1)
    assert watch.refused == {11: "its answer cannot be read (RecursionError)"}
    assert watch.enrolled == [("a", 1)]


def test_what_a_refused_client_says_of_its_data_is_told_of_no_other() -> None:
    alice, thief = Signing("alice", new_key()), Volunteer("alice", data_refused="labels")
    grid = slow(RealGrid({10: alice, 11: Volunteer("b")}))
    watch = federate(grid, 2, Watch(before={2: lambda: grid.nodes.update({12: thief})}))
    assert watch.refused[12].startswith("client-id 'alice' belongs to another key")


def test_a_client_app_without_a_roll_call_is_known_by_its_node_id() -> None:
    def plain(message: Message) -> Message | None:
        if message.metadata.message_type == "query":
            raise ValueError("No query function registered with name 'default'")
        return Volunteer("plain")(message)

    watch = federate(RealGrid({10: Volunteer("a"), 11: plain}), 1)
    assert [client for client, _ in watch.enrolled] == ["a", "11"]


def test_priority_goes_by_the_key_where_the_operator_names_one() -> None:
    key = new_key()
    listed, other = Signing("anna", key), Signing("zed", new_key())
    for volunteer in (listed.volunteer, other.volunteer):
        volunteer.metrics = {keys.LOSS: 1.0, "priority": 0}
        volunteer.evaluation = {keys.LOSS: 1.0}
    strategy = FedALIGN(epsilon=-1, warmup_rounds=1, priority_ids=[id_of(key)], evaluate_every=0)
    grid = RealGrid({10: listed, 11: other})
    run(strategy, grid, 1, roll_call_config=TOLD)
    assert grid.asked(1) == [10]


# -- how many, and how often ---------------------------------------------------------------------------


def test_a_crowd_takes_the_places_that_are_free_and_earlier_members_keep_theirs() -> None:
    key = new_key()
    grid = slow(RealGrid({10: Signing("alice", key), 11: Volunteer("b")}))

    def crowd() -> None:
        grid.nodes |= {100 + k: Volunteer(f"puppet-{k}") for k in range(150)}

    def restart() -> None:
        grid.nodes[999] = Signing("alice", key)
        del grid.nodes[10]

    watch = federate(grid, 8, Watch(before={2: crowd, 4: restart}), min_clients=2, max_clients=4)
    assert len(watch.records[-1].decisions) == 4
    assert {client for client, _ in watch.enrolled} == {"alice", "b", "puppet-0", "puppet-1"}
    assert 999 in grid.asked(8)
    full = [reason for reason in watch.refused.values() if reason.startswith("the run has all of its 4 clients")]
    assert len(full) >= MOST_TOLD
    assert any("(refusal 64 of this run" in reason for reason in full)
    assert len(watch.refused) <= MOST_TOLD + 2, "of 148 refusals few are told"


def test_a_run_with_one_place_has_one_client() -> None:
    grid = slow(RealGrid({10: Volunteer("a"), 11: Volunteer("b")}))
    watch = federate(grid, 2, min_clients=1, max_clients=1)
    assert [client for client, _ in watch.enrolled] == ["a"]
    assert watch.refused == {11: "the run has all of its 1 clients (max-clients)"}


class Renewing(RealGrid):
    """All nodes come online anew before each look at them."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.looks = getattr(self, "looks", 0) + 1
        self.activated = dict.fromkeys(self.nodes, f"look {self.looks}")
        return super().get_nodes()


@pytest.mark.parametrize("kind", [RealGrid, Renewing])
def test_nodes_that_never_answer_are_called_a_few_at_a_time(kind: type[RealGrid]) -> None:
    grid = kind({10 + k: lambda message: None for k in range(150)})
    grid.nodes[9] = Volunteer("a")
    slow(grid, 1.0)
    times: list[tuple[float, int]] = []
    watch = Watch(after={1: lambda: times.append((grid.clock(), len(grid.sent("query"))))})
    federate(grid, 8, watch, max_clients=4, start_timeout=300.0, round_timeout=30.0)
    assert times[0][1] <= 2 * FEW + 1, "within the first seconds"
    calls = [message.metadata.dst_node_id for message in grid.sent("query")]
    assert (len(set(calls)) == len(calls)) == (kind is RealGrid), "a node that comes online anew is called again"


def test_a_simulation_calls_all_at_once_and_has_no_places() -> None:
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}") for k in range(150)})
    watch = federate(grid, 1, max_clients=4)
    assert len(watch.records[0].decisions) == 150
    assert all(keys.NONCE not in m.content.config_records[keys.CONFIG] for m in grid.sent("query"))


@pytest.mark.parametrize("real", [True, False])
def test_a_node_that_is_not_available_is_called_ever_less_often_and_the_operator_is_told(real: bool) -> None:
    grid = slow((RealGrid if real else MemoryGrid)({10: Volunteer("a")}), 0.5)
    calls: list[float] = []

    def unavailable(message: Message) -> Message:
        calls.append(grid.clock())
        return Message(Error(4, "not\nnow"), reply_to=message)

    grid.nodes[11] = unavailable
    told: list[tuple[int, float, str]] = []
    watch = Watch()
    watch.on_unavailable = lambda node, times, seconds, reason: told.append((times, seconds, reason))  # type: ignore[method-assign]
    federate(grid, 500, watch)
    waits = [later - earlier for earlier, later in pairwise(calls)]
    assert waits[:8] == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=1.0)
    assert told[:3] == [(1, 1.0, "not now"), (2, 2.0, "not now"), (3, 4.0, "not now")]
    assert told[-1][1] == LONGEST_PAUSE


def test_a_refused_node_that_goes_and_comes_is_not_called_each_time() -> None:
    grid = slow(RealGrid({10: Volunteer("a")}), 1.0)
    mallory = Volunteer("m", refuses="no")
    toggles: dict[int, Any] = {number: lambda: grid.nodes.pop(11, None) for number in range(3, 60, 2)}
    toggles |= {number: lambda: grid.nodes.update({11: mallory}) for number in range(2, 60, 2)}
    federate(grid, 60, Watch(before=toggles))
    assert 3 <= len(mallory.got) <= 7


@pytest.mark.parametrize(("names", "open_"), [({10: "a", 11: "b"}, 0), ({10: "a"}, 1), ({}, 1)])
def test_a_run_with_a_node_that_no_operator_registered_says_so_once(names: dict[int, str], open_: int) -> None:
    grid = RealGrid({10: Volunteer("a"), 11: Volunteer("b")})
    grid.names = names
    told: list[int] = []
    watch = Watch()
    watch.on_open_federation = lambda: told.append(1)  # type: ignore[method-assign]
    federate(grid, 3, watch)
    assert len(told) == open_
