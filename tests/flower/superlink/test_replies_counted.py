"""Which of a node's announcements `guarded_fleet` counts, over both kinds of Flower's state; none locks it out."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.proto import fleet_pb2
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from sqlalchemy import text

from fedappeal.flower.node.fleet import NotConnected
from fedappeal.flower.node.fleet_http import HttpFleet
from fedappeal.flower.superlink import guarded_fleet
from fedappeal.flower.superlink.guarded_fleet import REPLIES_AT_LEAST, REPLIES_EACH
from fedappeal.flower.superlink.held_polls import HeldPolls
from fedappeal.flower.versions import fleet_handlers
from tests.flower.conftest import Server, app_of, serve_app
from tests.flower.superlink.test_fleet_limits import Sender
from tests.hostile.forged import Forged, Upload, announce, forged, metrics, model, npy, reply

MANY = REPLIES_AT_LEAST + REPLIES_EACH + 5


@pytest.fixture(params=["memory", "database"])
def start(
    request: pytest.FixtureRequest, empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Server]]:
    """Starts a SuperLink; a second time it has lost what was in memory."""
    handlers = fleet_handlers()
    monkeypatch.setattr(handlers, "check_abort", handlers.check_abort)  # put back after the test
    in_memory = request.param == "memory"
    database = FLWR_IN_MEMORY_DB_NAME if in_memory else str(shutil.copy(empty_database, tmp_path))
    running: list[Iterator[Server]] = []

    def start_one() -> Server:
        states = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory())
        running.append(serve_app(app_of(states, HeldPolls()), states))
        return next(running[-1])

    yield start_one
    for server in running:
        next(server, None)


def sessions(server: Server) -> int:
    """Return the number of uploads that Flower keeps."""
    state = server.state
    if hasattr(state, "_object_push_sessions"):
        return len(state._object_push_sessions)
    with state.session() as session:
        return int(session.scalar(text("SELECT COUNT(*) FROM object_push_sessions")))


def answers(sender: Sender, *, number: int) -> None:
    """Let a node answer messages; each answer is taken."""
    for _ in range(number):
        sender.receive()
        assert not sender.announce(model(npy(4))).push().refused


def test_a_repeated_announcement_counts_once(start: Callable[[], Server]) -> None:
    server = start()
    sender = Sender(server)
    sender.receive()
    first = reply(sender.message, model(npy(4)))
    for _ in range(MANY):
        upload = announce(sender.fleet, sender.node_id, *first)
        assert not upload.refused
        assert sessions(server) <= 2, "the ServerApp's own, and this"
        upload.push(1)
    assert not upload.left, "what came before a repeat is not sent again"
    assert server.reply(sender.message.metadata.message_id, sender.run_id) is not None
    answers(sender, number=3)


def too_long(sender: Sender) -> Upload:
    proto, root = reply(sender.message)
    proto.error.reason = "x" * 100_000
    return announce(sender.fleet, sender.node_id, proto, root)


def to_no_message(sender: Sender) -> Upload:
    proto, root = reply(sender.message, model(npy(4)))
    proto.metadata.reply_to_message_id = "0" * 64
    return announce(sender.fleet, sender.node_id, proto, root)


def second_reply(sender: Sender) -> Upload:
    return sender.announce(model(npy(4)), metrics())


@pytest.mark.parametrize("refused", [too_long, to_no_message, second_reply])
def test_what_is_refused_is_not_counted_and_leaves_nothing(
    start: Callable[[], Server], refused: Callable[[Sender], Upload]
) -> None:
    server = start()
    sender = Sender(server)
    answers(sender, number=1)
    uploads, stored = sessions(server), len(server.states.objectstore_factory.store())
    for _ in range(MANY):
        assert not refused(sender).left
    assert sessions(server) == uploads
    assert len(server.states.objectstore_factory.store()) == stored
    answers(sender, number=3)


@pytest.mark.parametrize("start", ["database"], indirect=True)
def test_a_node_repeats_its_reply_to_a_superlink_that_was_restarted(start: Callable[[], Server]) -> None:
    server = start()
    sender = Sender(server)
    sender.receive()
    first = reply(sender.message, model(npy(4)))
    announce(sender.fleet, sender.node_id, *first).push(1)
    again = start()
    fleet = HttpFleet(again.address, sender.fleet._signer._key, insecure=True, root_certificates=None)
    again.fleets.append(fleet)
    for _ in range(MANY):
        upload = announce(fleet, sender.node_id, *first)
        assert not upload.refused
        upload.push(1)
    assert again.reply(sender.message.metadata.message_id, sender.run_id) is not None


def announced_as(sender: Sender, proto: MessageProto, tree: ObjectTree) -> str:
    """Announce a reply that is stored once more, now with other objects; return why it is refused."""
    request = fleet_pb2.PushMessagesRequest(
        node=Node(node_id=sender.node_id),
        messages_list=[proto],
        message_object_trees=[tree],
        clientapp_runtime_list=[0],
    )
    try:
        sender.fleet._call("PushMessages", request)
    except NotConnected as error:
        return str(error)
    return ""


def test_a_flood_is_bounded_and_its_node_answers_the_next_message(start: Callable[[], Server]) -> None:
    server = start()
    sender = Sender(server)
    sender.receive()
    proto, root = reply(sender.message, model(npy(4)))
    assert not announce(sender.fleet, sender.node_id, proto, root).refused
    before, allowed = len(server.states.objectstore_factory.store()), REPLIES_AT_LEAST + REPLIES_EACH
    others = [forged("Message", b"%d" % number, metrics(number=number)).tree for number in range(MANY)]
    refused = [why for other in others if (why := announced_as(sender, proto, other))]
    assert len(refused) == MANY - allowed + 1
    assert f"more than the {allowed} replies that are allowed" in refused[0]
    assert len(server.states.objectstore_factory.store()) == before + 2 * (allowed - 1)
    answers(sender, number=3)


def test_an_announcement_counts_whose_message_is_deleted_while_it_is_compared(
    start: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may delete its reply at any time, and announce it with other objects, of which its id says nothing."""
    server = start()
    sender, store, compare = Sender(server), server.states.objectstore_factory.store(), guarded_fleet.levels
    sender.receive()
    proto, root = reply(sender.message, model(npy(1)))
    assert not announce(sender.fleet, sender.node_id, proto, root).refused

    def delete_meanwhile(tree: ObjectTree, most: int) -> object:
        store.delete(root.id)
        return compare(tree, most)

    monkeypatch.setattr(guarded_fleet, "levels", delete_meanwhile)
    others = [Forged(root.content, (model(npy(count)),)) for count in range(2, MANY)]
    refused = [announce(sender.fleet, sender.node_id, proto, other).refused for other in others]
    assert refused.count([]) == REPLIES_AT_LEAST + REPLIES_EACH - 1


def test_each_object_that_is_announced_as_a_reply_counts(start: Callable[[], Server]) -> None:
    """Flower keeps an upload for each, though all are stored already."""
    server = start()
    sender = Sender(server)
    sender.receive()
    proto, root = reply(sender.message, *(metrics(number=number) for number in range(MANY)))
    assert not announce(sender.fleet, sender.node_id, proto, root).refused
    before, allowed = sessions(server), REPLIES_AT_LEAST + REPLIES_EACH
    refused = [why for leaf in root.children if (why := announced_as(sender, proto, leaf.tree))]
    assert len(refused) == MANY - allowed + 1
    assert sessions(server) == before + allowed - 1
    answers(sender, number=3)
