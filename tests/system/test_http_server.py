"""How a body is read; what bounds connections is in the tests of pages and of the Fleet port."""

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from fedappeal.system.http_server import read_body

PART = {"type": "http.request", "body": b"12345", "more_body": True}
LAST = {"type": "http.request", "body": b"6789", "more_body": False}


def read(length: str, *messages: Message, within: float = 10.0) -> bytes:
    coming = iter(messages)

    async def receive() -> Message:
        if (message := next(coming, None)) is None:
            await asyncio.sleep(60)
        assert message is not None
        return message

    return asyncio.run(read_body(receive, length, 9, within))


@pytest.mark.parametrize("length", ["", "9"])
def test_a_body_of_the_most_bytes_is_read(length: str) -> None:
    assert read(length, PART, LAST) == b"123456789"


@pytest.mark.parametrize(
    ("length", "messages", "status"),
    [
        ("10", (), 413),
        ("-1", (), 413),
        ("x", (), 413),
        ("0" * 13, (), 413),
        ("", (PART, PART), 413),
        ("9", (PART, PART), 413),
        ("9", (PART, {"type": "http.disconnect"}), 400),
        ("9", (PART,), 408),
    ],
)
def test_a_body_that_is_too_large_cut_short_or_late_is_refused(
    length: str, messages: tuple[Message, ...], status: int
) -> None:
    with pytest.raises(HTTPException) as refused:
        read(length, *messages, within=0.05)
    assert refused.value.status_code == status
