"""A page's buttons: a JSON object comes in, one line of what was done goes out."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fedappeal.protocol.foreign_text import parse_json, printable

Act = Callable[[dict[str, Any]], str]
"""Does what a body asks for, and returns what was done; raises ValueError or OSError where it is not done."""


def button(act: Act, refused: HTTPStatus) -> Callable[[Request], Awaitable[Response]]:
    """Return a button's endpoint, which answers with a confirmation or a refusal.

    Args:
        act: what the button does.
        refused: status of an answer where it was not done; a body that is no JSON object is a bad request.
    """

    async def pressed(request: Request) -> Response:
        status = HTTPStatus.BAD_REQUEST
        try:
            body = parse_json(await request.body() or b"{}")
            if not isinstance(body, dict):
                raise ValueError("a JSON object is expected")
            status = refused
            return JSONResponse({"said": printable(await run_in_threadpool(act, body))})
        except (ValueError, OSError) as error:
            return JSONResponse({"said": printable(error)}, status)

    return pressed
