"""The bytes of a message, counted while its objects come."""

import time
from typing import Any
from unittest.mock import Mock

import pytest

from client.fleet import connection
from client.fleet.connection import FleetConnection
from client.fleet.traffic import Traffic
from fedappeal.flower.node.fleet import MessageRefused

NUMBER = 600


class Content(bytes):
    """Ten bytes that count how often their length is asked for."""

    asked = 0

    def __len__(self) -> int:
        Content.asked += 1
        return super().__len__()


def pulled(monkeypatch: pytest.MonkeyPatch, largest: int) -> tuple[int, int]:
    """Return the bytes and number of objects that came of a server that gives one a call."""
    monkeypatch.setattr(connection.time, "sleep", lambda seconds: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(Content, "asked", 0)
    fleet: Any = object.__new__(FleetConnection)
    fleet.node_id, fleet.traffic = 1, Traffic()
    fleet._fleet = Mock(pull_objects=lambda node, run, parts: {parts[0]: Content(10)})
    message = Mock(about=Mock(metadata=Mock(created_at=time.time(), ttl=60.0)))
    contents: dict[str, bytes] = {}
    size = fleet._pull(message, [f"{number}" for number in range(NUMBER)], contents, 5, largest)
    return size, len(contents)


def test_each_object_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pulled(monkeypatch, 0) == pulled(monkeypatch, 10 * NUMBER + 5) == (10 * NUMBER + 5, NUMBER)
    assert Content.asked <= 2 * NUMBER


def test_a_message_is_refused_at_the_object_that_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MessageRefused, match=r"max-model = 0\.000104 MB"):
        pulled(monkeypatch, 104)
    assert Content.asked == 10
