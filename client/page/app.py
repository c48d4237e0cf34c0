"""The volunteer's page as an app: its data from the state folder, its files, and what its owner can do."""

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

from client.limits.limits import Limits, read_limits, write_limits
from client.limits.rest import Surroundings, battery, check_surroundings
from client.process.owner import PAUSED, client_name, leave, pause, reset, resume
from client.process.status import GOES_ON, RunStatus, client_status
from client.state.preferred import describe_preferred
from client.state.store import DiskStore
from fedappeal.protocol.foreign_text import parse_json, printable
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import fact

STATIC = Path(__file__).parent / "static"
_LONGEST = 300


def page_data(folder: Path) -> dict[str, Any]:
    """Return the page's data; texts of other parties are printable and short."""
    store = DiskStore(folder) if folder.is_dir() else None  # a page makes no folder
    status = client_status(folder)
    return {
        "client": printable(client_name(store), _LONGEST) if store else "no client has kept state here yet",
        "state": status.state,
        "line": printable(status.line, _LONGEST),
        "latest": printable(status.latest, _LONGEST),
        "paused": (folder / PAUSED).exists(),
        "battery": battery(),
        "runs": [_run(run) for run in reversed(status.runs)],
        "prefers": [printable(line, 2 * _LONGEST) for line in describe_preferred(store)] if store else [],
    }


def limits_data(folder: Path, started_with: str = "") -> dict[str, Any]:
    """Return the limits for the page: each with unit and meaning, and a damaged file's problem.

    Args:
        folder: the state folder.
        started_with: limits that the client was started with, which go before those of the folder.
    """
    problem = ""
    try:
        limits = read_limits(folder)
    except ConfigError as error:
        limits, problem = Limits(), printable(error, _LONGEST)
    values, counts = limits.as_config(), limits.with_text(started_with).as_config()
    fields = [
        {
            "key": key,
            "value": values[key],
            "unit": fact(field, "unit"),
            "help": field.description,
            "instead": counts[key] if counts[key] != values[key] else None,
        }
        for key, field in Limits.by_key().items()
    ]
    return {"limits": fields, "problem": problem}


def _run(run: RunStatus) -> dict[str, Any]:
    shown = {
        "run": printable(run.run_key, _LONGEST),
        "name": printable(run.name, _LONGEST),
        "state": run.state,
        "line": printable(run.line, _LONGEST),
        "can_leave": run.state in GOES_ON,
    }
    if (did := run.activity) is None:
        return shown
    return shown | {
        "joined": did.done.get("joined", 0),
        "sat_out": did.done.get("sat-out", 0),
        "failed": did.done.get("failed", 0),
        "seconds": did.seconds,
        "bytes_up": did.bytes_up,
        "bytes_down": did.bytes_down,
        "last": did.last,
        "judged": f"round {did.server_round}: {printable(did.judged.compared, _LONGEST)}" if did.judged else None,
        "met": did.judged is not None and did.judged.met,
        "goodwill": printable(did.goodwill_line, _LONGEST),
    }


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
