"""Server-sent events: everything first, then each change; no reader holds up the teller."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedappeal.web.events import Events
from fedappeal.web.serving import PagePlace, serve_page
from tests.web.pages import small_page


def request() -> Request:
    return Request({"type": "http", "method": "GET", "path": "/events", "headers": [], "query_string": b""})


async def texts(answer: Response) -> AsyncIterator[str]:
    async for text in answer.body_iterator:  # type: ignore[attr-defined]
        yield text


def parsed(text: str) -> tuple[str, Any]:
    name, data, *_ = text.split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_a_page_is_told_everything_and_then_the_changes() -> None:
    async def trial() -> None:
        events = Events(lambda: ("all", {"round": 1}))
        told = texts(await events.endpoint(request()))
        assert parsed(await anext(told)) == ("all", {"round": 1})
        events.tell("round", {"round": 2})
        events.tell("round", {"round": 3})
        assert [parsed(await anext(told)), parsed(await anext(told))] == [
            ("round", {"round": 2}),
            ("round", {"round": 3}),
        ]

    asyncio.run(trial())


def test_a_slow_page_is_told_everything_again_in_place_of_what_it_missed() -> None:
    async def trial() -> None:
        last = 0
        events = Events(lambda: ("all", last), longest=4)
        slow = texts(await events.endpoint(request()))
        assert parsed(await anext(slow)) == ("all", 0)
        for last in range(1, 1001):
            events.tell("round", last)  # never waits
        assert parsed(await anext(slow)) == ("all", 1000)
        events.tell("round", 1001)
        assert parsed(await anext(slow)) == ("round", 1001)

    asyncio.run(trial())


def test_silence_is_broken_by_a_sign_of_life() -> None:
    async def trial() -> None:
        events = Events(lambda: ("all", 0), heartbeat=0.01)
        told = texts(await events.endpoint(request()))
        await anext(told)
        assert await anext(told) == ": still here\n\n"

    asyncio.run(trial())


def test_texts_of_others_stay_inside_their_event() -> None:
    async def trial() -> None:
        events = Events(lambda: ("all", {"id": "a\n\nevent: forged\rdata: 1"}))
        text = await anext(texts(await events.endpoint(request())))
        assert text.count("\n") == 3
        assert "\r" not in text
        assert parsed(text) == ("all", {"id": "a\n\nevent: forged\rdata: 1"})

    asyncio.run(trial())


def test_pages_beyond_the_most_are_refused_until_one_is_closed() -> None:
    events = Events(lambda: ("all", 0), most_readers=2, heartbeat=0.05)
    with serve_page(small_page(Route("/events", events.endpoint)), PagePlace(0)) as page:
        address = f"http://{page.address}/events"
        known = {"Authorization": f"Bearer {page.token}"}
        with (
            httpx.Client(headers=known, trust_env=False, timeout=30) as client,
            client.stream("GET", address) as one,
            client.stream("GET", address) as two,
        ):
            lines = [one.iter_lines(), two.iter_lines()]  # kept: what is let go of closes its stream
            assert [next(each) for each in lines] == ["event: all"] * 2
            assert one.headers["content-type"].startswith("text/event-stream")
            refused = client.get(address)
            assert (refused.status_code, refused.text) == (503, "at most 2 pages are open at once\n")
        assert _none_left(events)
        with httpx.stream("GET", address, headers=known, trust_env=False) as again:
            assert again.status_code == 200


def _none_left(events: Events) -> bool:
    for _ in range(1000):
        if events.readers == 0:
            return True
        asyncio.run(asyncio.sleep(0.01))
    return False


def test_one_page_more_than_are_allowed_is_refused() -> None:
    async def trial() -> list[int]:
        events = Events(lambda: ("all", 0))
        answers = [await events.endpoint(request()) for _ in range(17)]
        assert events.readers == 16
        return [answer.status_code for answer in answers]

    assert asyncio.run(trial()) == [200] * 16 + [503]


@pytest.mark.parametrize("name", ["state", "round"])
def test_nothing_is_kept_where_no_page_is_open(name: str) -> None:
    events = Events(lambda: (name, 1))
    for number in range(1000):
        events.tell(name, number)
    assert events.readers == 0
