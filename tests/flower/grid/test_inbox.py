"""What fedappeal.flower.grid.inbox relies on: which grid is the one of a SuperLink."""

import inspect

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import http_grid

from fedappeal.flower.grid import inbox as module
from fedappeal.flower.grid.http_inbox import HttpInbox
from fedappeal.protocol.packing import Allowance
from tests.grid import MemoryGrid, Volunteer, model


def test_the_replies_of_a_superlink_are_pulled_with_care() -> None:
    deployed = http_grid.HttpGrid(token="any")
    assert http_grid.__name__ == module._HTTP_GRID
    inbox = module.inbox_of(deployed)
    assert isinstance(inbox, HttpInbox)
    assert inbox.remote


def test_those_of_other_grids_are_taken_as_they_are() -> None:
    memory = MemoryGrid({10: Volunteer("a"), 11: Volunteer("b")})
    inbox = module.inbox_of(memory)
    assert not inbox.remote
    messages = [memory.create_message(_content(), "train", node, "1") for node in (10, 11)]
    first, second = memory.push_messages(messages)
    assert [m.metadata.reply_to_message_id for m in inbox.pull([first], Allowance(), [second])] == [first, second]


def test_a_grid_is_given_a_run() -> None:
    assert inspect.signature(Grid.set_run).parameters["run"].annotation in (module.Run, "Run")


def _content() -> RecordDict:
    return RecordDict({"arrays": model(0.0), "config": ConfigRecord({"server-round": 1})})
