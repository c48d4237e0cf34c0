"""The volunteer's page as an app: its files, what it shows, and what its owner can do."""

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from client.limits.limits import read_limits, write_limits
from client.limits.rest_reasons import Surroundings, check_surroundings
from client.page.view import limits_data, page_data
from client.process.owner import leave, pause, reset, resume
from fedappeal.protocol.foreign_text import parse_json, printable
from fedappeal.settings.config import ConfigError

STATIC = Path(__file__).parent / "static"


def volunteer_app(folder: Path, started_with: str = "") -> Starlette:
    """Return the page of the client that keeps its state in a folder, an ASGI app.

    Args:
        folder: the state folder.
        started_with: the limits that the client was started with, as `Limits.with_text` reads them.
    """

    def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    def data(request: Request) -> Response:
        return JSONResponse(page_data(folder))

    def limits(request: Request) -> Response:
        return JSONResponse(limits_data(folder, started_with))

    def change(body: dict[str, Any]) -> str:
        limits = read_limits(folder).with_values(body)
        check_surroundings(limits, Surroundings())
        write_limits(folder, limits)
        return "limits kept"

    def leave_run(body: dict[str, Any]) -> str:
        if not isinstance(body.get("run"), str):
            raise ConfigError("run is missing: which run to leave")
        return leave(folder, body["run"])

    actions: dict[str, Callable[[dict[str, Any]], str]] = {
        "pause": lambda body: pause(folder),
        "resume": lambda body: resume(folder),
        "leave": leave_run,
        "erase": lambda body: reset(folder, forget=True),
        "limits": change,
    }

    async def act(request: Request) -> Response:
        if (action := actions.get(request.path_params["name"])) is None:
            return JSONResponse({"said": "no such action"}, HTTPStatus.NOT_FOUND)
        try:
            body = parse_json(await request.body() or b"{}")
            if not isinstance(body, dict):
                raise ConfigError("a JSON object is expected")
            return JSONResponse({"said": printable(await run_in_threadpool(action, body))})
        except (ConfigError, ValueError, OSError) as error:
            return JSONResponse({"said": printable(error)}, HTTPStatus.BAD_REQUEST)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/data.json", data),
            Route("/limits.json", limits),
            Route("/do/{name}", act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )
