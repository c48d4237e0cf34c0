"""What fedappeal.flower.messages relies on: error codes, the text of a ClientApp without a handler, TaskIdentity."""

from collections.abc import Callable

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
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


def state_of(message: Message) -> dict[str, object]:
    """All that Flower keeps of a message, but its times and the checks of its records."""
    whole = vars(message) | {"_metadata": vars(message.metadata), "_content": dict(message.content)}
    assert {type(record) for record in message.content.values()} <= {ArrayRecord, ConfigRecord, MetricRecord}
    whole["_metadata"] = {k: v for k, v in vars(message.metadata).items() if k not in ("_created_at", "_ttl")}
    return whole


def test_a_copy_for_another_node_is_as_flower_makes_it() -> None:
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"round": 3})})
    first, other = (Message(content, node, "evaluate", ttl=60.0, group_id="3") for node in (5, 6))
    copy = messages.copy_for_node(first, 6)
    assert state_of(copy) == state_of(other)
    assert vars(copy).keys() == vars(other).keys()
    assert vars(copy.content).keys() == vars(other.content).keys()
    messages.set_message_id(copy, "m")
    copy.content["config"] = ConfigRecord()
    assert state_of(first) == state_of(Message(content, 5, "evaluate", ttl=60.0, group_id="3"))
    assert dict(first.content["config"]) == {"round": 3}


@pytest.mark.parametrize("numbers", [{"loss": 0.5, "num-examples": 7}, {"losses": [0.5, 1.0]}, {}])
def test_a_reply_of_numbers_is_as_flower_makes_it(numbers: dict[str, float | list[float]]) -> None:
    asked = ask("evaluate")
    mine = messages.reply_of_numbers("metrics", numbers, asked)
    flowers = Message(RecordDict({"metrics": MetricRecord(dict(numbers))}), reply_to=asked)
    assert state_of(mine) == state_of(flowers)
    assert vars(mine).keys() == vars(flowers).keys()
    assert mine.metadata.created_at == pytest.approx(flowers.metadata.created_at, abs=5.0)
    assert mine.metadata.created_at + mine.metadata.ttl == pytest.approx(
        flowers.metadata.created_at + flowers.metadata.ttl
    )
    for made, by_flower in ((mine.content, flowers.content), (mine.content["metrics"], flowers.content["metrics"])):
        assert vars(made).keys() == vars(by_flower).keys()
        assert made.object_id == by_flower.object_id
        with pytest.raises(TypeError):
            made["text"] = "none"  # type: ignore[assignment]


@pytest.mark.parametrize("numbers", [{"loss": "low"}, {"met": True}, {7: 0.5}, {"losses": [0.5, "low"]}])
def test_what_flower_does_not_allow_in_a_reply_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(TypeError):
        messages.reply_of_numbers("metrics", numbers, ask("evaluate"))


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
