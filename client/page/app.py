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
from client.process.owner import PAUSED, client_name, departures, leave, pause, reset, resting, resume
from client.state.activity import Activity, RunActivity, work_of
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
    departed = departures(store) if store else ()
    runs = [_run(run, run.run_key in departed) for run in reversed(Activity(folder).runs().values())]
    work = work_of(folder)
    return {
        "client": printable(client_name(store), _LONGEST) if store else "no client has kept state here yet",
        "paused": (folder / PAUSED).exists(),
        "rests": printable(resting(folder), _LONGEST),
        "works": {"what": printable(work.what, _LONGEST), "since": work.since} if work else None,
        "battery": battery(),
        "runs": runs,
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


def _run(run: RunActivity, departed: bool) -> dict[str, Any]:
    judged = run.judged
    return {
        "run": printable(run.run_key, _LONGEST),
        "what": printable(run.what, _LONGEST),
        "departed": departed,
        "joined": run.done.get("joined", 0),
        "sat_out": run.done.get("sat-out", 0),
        "failed": run.done.get("failed", 0),
        "seconds": run.seconds,
        "bytes_up": run.bytes_up,
        "bytes_down": run.bytes_down,
        "last": run.last,
        "judged": None
        if judged is None
        else f"round {run.server_round}: {printable(judged.of, 80)} {judged.figure:.4f}, "
        f"required {judged.bound} {judged.requirement:.4f}",
        "met": judged is not None and judged.met,
        "goodwill": printable(run.goodwill_line, _LONGEST),
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
