"""What `database_cache` relies on: which SQL Flower runs for a request, and what may be put off."""

import inspect
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, Status
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from sqlalchemy import event, text

from fedappeal.flower.messages import be_sender
from fedappeal.flower.node.objects import Parcel
from fedappeal.flower.superlink import database_cache
from fedappeal.flower.superlink.database_cache import (
    LOCKED_FOR,
    REMEMBERED,
    Remembered,
    cache_database,
)
from fedappeal.flower.versions import fleet_handlers

HANDLERS = fleet_handlers()
ABORT = [Status.PENDING, Status.STARTING, Status.FINISHED]


@pytest.fixture
def state(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A link state in a database that is spared."""
    monkeypatch.setattr(HANDLERS, "check_abort", HANDLERS.check_abort)  # put back after the test
    monkeypatch.setattr(database_cache, "REMEMBERED", 3600.0)
    database = str(shutil.copy(empty_database, tmp_path))
    made: Any = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory()).state()
    cache_database(made)
    return made


@pytest.fixture
def statements(state: Any) -> Iterator[list[str]]:
    """The SQL statements that were run since the last look."""
    run: list[str] = []

    def note(*said: Any) -> None:
        run.append(said[2])

    event.listen(state._engine, "before_cursor_execute", note)
    yield run
    event.remove(state._engine, "before_cursor_execute", note)


def test_one_writer_waits_for_another_for_a_minute_in_each_connection(state: Any) -> None:
    with state.session() as first:
        assert first.scalar(text("PRAGMA busy_timeout")) == 1000 * LOCKED_FOR
        with state._engine.connect() as other:
            assert other.scalar(text("PRAGMA busy_timeout")) == 1000 * LOCKED_FOR
            assert other.scalar(text("PRAGMA journal_mode")) == "wal", "Flower's own"


def run_of(state: Any) -> tuple[int, int]:
    """Return a run that is running, and its task."""
    run_id = int(state.create_run("a/b", "1.0", "h", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP))
    [task] = state.get_tasks(run_ids=[run_id])
    assert state.claim_task(task.task_id)
    assert state.activate_task(task.task_id)
    return run_id, task.task_id


def test_what_requests_repeat_is_asked_once(state: Any, statements: list[str]) -> None:
    run_id, _ = run_of(state)
    node = state.create_node("a", "a", b"key", 0)
    statements.clear()
    for _ in range(5):
        assert state.get_node_id_by_public_key(b"key") == node
    assert len(statements) == 1
    statements.clear()
    assert HANDLERS.check_abort(run_id, ABORT, state) is None
    asked = len(statements)
    assert asked > 1, "Flower ends expired tasks first"
    for _ in range(5):
        assert HANDLERS.check_abort(run_id, ABORT, state) is None
    assert len(statements) == asked


def test_a_node_that_is_unregistered_and_a_key_that_is_not_known_are_asked_for_anew(state: Any) -> None:
    assert state.get_node_id_by_public_key(b"key") is None
    node = state.create_node("a", "a", b"key", 0)
    assert state.get_node_id_by_public_key(b"key") == node
    state.delete_node("a", node)
    assert state.get_node_id_by_public_key(b"key") is None


def test_a_run_that_has_ended_is_refused_once_the_answer_is_forgotten(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, task = run_of(state)
    assert HANDLERS.check_abort(run_id, ABORT, state) is None
    state.finish_task(task, sub_status="completed", details="")
    monkeypatch.setattr(Remembered, "get", lambda self, key, ask, lasting: ask())
    assert HANDLERS.check_abort(run_id, ABORT, state) == "Run is finished."
    assert HANDLERS.check_abort(run_id + 1, ABORT, state) == "Run is not known.", "a database restored from a backup"


def test_answers_are_remembered_for_a_short_time_and_refusals_are_not() -> None:
    now, asked = [0.0], []

    def ask(answer: Any) -> Callable[[], Any]:
        return lambda: asked.append(answer) or answer

    remembered: Remembered[str, Any] = Remembered(lambda: now[0])
    for at, answer, expected in ((0.0, 1, 1), (REMEMBERED * 0.9, 2, 1), (REMEMBERED * 1.1, 3, 3)):
        now[0] = at
        assert remembered.get("a", ask(answer), lambda _: True) == expected
    assert asked == [1, 3]
    assert [remembered.get("b", ask(i), lambda _: False) for i in (4, 5)] == [4, 5]
    remembered.forget()
    assert remembered.get("a", ask(6), lambda _: True) == 6


def test_an_answer_that_was_asked_for_before_all_were_forgotten_is_not_remembered() -> None:
    remembered: Remembered[str, int] = Remembered(lambda: 0.0)
    assert remembered.get("a", lambda: remembered.forget() or 1, bool) == 1  # type: ignore[func-returns-value]
    assert remembered.get("a", lambda: 2, bool) == 2


def test_a_state_in_memory_is_left_alone() -> None:
    made: Any = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()).state()
    check = HANDLERS.check_abort
    cache_database(made)
    assert "get_node_id_by_public_key" not in vars(made)
    assert HANDLERS.check_abort is check


def test_messages_are_kept_in_memory_and_nodes_outlive_it(state: Any, statements: list[str], tmp_path: Path) -> None:
    run_id, task = run_of(state)
    node = state.create_node("a", "a", b"key", 0)
    assert state.activate_node(node, 30.0)
    be_sender(run_id, SUPERLINK_NODE_ID, task)
    message = Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), node, "train", ttl=60.0)
    parcel, session = Parcel.of(message), state.start_session(run_id)
    stored, missing = state.store_message_and_object_tree(message, parcel.tree, session)
    assert stored
    for object_id, content in parcel.contents(set(missing)).items():
        assert state.store_object(run_id, session, object_id, content)
    statements.clear()
    assert state.object_store.get(message.metadata.message_id)
    assert statements == []
    database = str(tmp_path / "state.db")
    after: Any = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory()).state()
    assert after.get_node_id_by_public_key(b"key") == node
    pull = PullMessagesRequest(node=Node(node_id=node))
    for _ in range(2):  # a message whose objects are lost is dropped
        assert not HANDLERS.pull_messages(pull, after, after.object_store).messages_list


def test_flower_asks_by_what_is_replaced() -> None:
    """Fails where Flower asks in another way."""
    for handler in (HANDLERS.pull_object, HANDLERS.push_object, HANDLERS.push_messages):
        assert "check_abort(" in inspect.getsource(handler)
