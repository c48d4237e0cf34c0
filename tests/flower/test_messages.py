"""What fedappeal.flower.messages relies on: error codes, the text of a ClientApp without a handler, TaskIdentity."""

from collections.abc import Callable

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.server.superlink.linkstate.utils import (
    create_message_error_unavailable_ins_message,
    create_message_error_unavailable_res_message,
)
from flwr.supercore.task_identity import TaskIdentity

from fedappeal.flower import messages


@pytest.fixture(autouse=True)
def server() -> None:
    messages.be_sender(7, 1, 9)


def ask(message_type: str = "query") -> Message:
    message = Message(RecordDict(), 5, message_type, ttl=60.0)
    messages.set_message_id(message, "m")
    return message


def context() -> Context:
    return Context(7, 5, {}, RecordDict(), {})


def as_a_stock_node(app: Callable[[Message, Context], Message], message: Message) -> Message:
    """Answer as Flower's run_clientapp does: an exception becomes an error reply with its type and text."""
    try:
        return app(message, context())
    except Exception as error:
        return messages.error_reply(str(type(error)) + ":<'" + str(error) + "'>", message)


@pytest.mark.parametrize("message_type", ["query", "train", "evaluate", "query.roll_call"])
def test_a_client_app_without_a_handler_is_told_from_one_that_fails(message_type: str) -> None:
    reply = as_a_stock_node(ClientApp(), ask(message_type))
    assert messages.has_no_handler(reply)

    failing = ClientApp()

    @failing.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no data")

    assert not messages.has_no_handler(as_a_stock_node(failing, ask("query")))


def test_flowers_own_way_to_report_an_exception_keeps_its_text() -> None:
    """The text of an exception is in the reply's reason: run_clientapp and the simulation build it alike."""
    import inspect

    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.supernode.runtime import run_clientapp

    text = """str(type(ex)) + ":<'" + str(ex) + "'>\""""
    assert text in inspect.getsource(run_clientapp.run_clientapp)
    assert text in inspect.getsource(vce_api)


def test_an_answer_is_not_a_missing_handler() -> None:
    reply = Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=ask())
    assert not messages.has_no_handler(reply)
    assert not messages.is_from_superlink(reply)


def test_the_superlinks_word_that_there_is_no_reply_is_known() -> None:
    asked = ask().metadata
    unavailable = create_message_error_unavailable_ins_message("m", 7)
    for error in (
        unavailable,
        create_message_error_unavailable_res_message(asked, "msg_unavail"),
        create_message_error_unavailable_res_message(asked, "node_unavail"),
    ):
        assert messages.is_from_superlink(error)
        assert not messages.has_no_handler(error)
    assert not messages.is_from_superlink(messages.error_reply("no data", ask()))


def test_an_error_reply_says_what_failed() -> None:
    raised = messages.error_reply("no data", ask())
    assert (raised.error.code, raised.error.reason) == (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no data")
    assert raised.metadata.reply_to_message_id == "m"


def test_a_message_has_the_id_that_it_was_given_and_comes_from_this_process() -> None:
    message = ask()
    assert message.metadata.message_id == "m"
    assert (message.metadata.run_id, message.metadata.src_node_id, message.metadata.src_task_id) == (7, 1, 9)
    messages.be_sender(8, 5, 0)
    assert (TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id) == (8, 5, 0)


def test_without_an_identity_flower_makes_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    with pytest.raises(RuntimeError, match="run_id is not set"):
        ask()
