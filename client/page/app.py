"""The volunteer's page as an app.

It holds the page's data from the state folder, its files, and what its owner can do.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from client.approval import approve
from client.limits.limits import PRESETS, Limits, preset, preset_of, read_limits, write_limits
from client.limits.rest import Surroundings, battery, check_surroundings
from client.page.trial import MOST_BYTES, try_models
from client.process.owner import PAUSED, client_name, leave, pause, reset, resume
from client.process.status import GOES_ON, RunState, RunStatus, client_status, told_line
from client.state.activity import KEPT_DECISIONS, Judged
from client.state.preferred import kept_models
from client.state.receipts import read_receipts
from client.state.store import DiskStore
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.metric import figure_text
from fedappeal.record.looks import LOOKS
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import fact
from fedappeal.system.files import state_of
from fedappeal.system.locks import changing
from fedappeal.web.buttons import Act, button

TRIAL = "/trial"
"""The path to which an owner sends a file that the models are tried on."""
BODIES = {TRIAL: MOST_BYTES}
"""The most bytes that the page takes there."""
STATIC = Path(__file__).parent / "static"
_LONGEST = 300
_SHORT = 80
_MOST_RECEIPTS, _MOST_TOLD = 100, 3000
_COLOURS = {look.title: look.colour for look in LOOKS.values()}


def page_data(folder: Path) -> dict[str, Any]:
    """Return the page's data; texts of other parties are printable and short."""
    store = DiskStore(folder) if folder.is_dir() else None  # a page makes no folder
    status = client_status(folder)
    models = list(_models(store)) if store else []
    files = {model["run"]: model for model in reversed(models)}
    client = printable(client_name(store), _LONGEST) if store else "no client has kept state here yet"
    name = printable(store.readable_values("identity").get("name", ""), _SHORT) if store else ""
    return {
        "client": client,
        "name": name or client,
        "state": status.state,
        "line": printable(status.line, _LONGEST),
        "latest": printable(status.latest, _LONGEST),
        "paused": (folder / PAUSED).exists(),
        "battery": battery(),
        "runs": [_run(run, files.get(run.run_key)) for run in reversed(status.runs)],
        "decisions": _decisions(status.runs),
        "sent": _receipts(folder),
        "models": models,
    }


def _receipts(folder: Path) -> dict[str, Any]:
    """Return the latest receipts of replies, the latest first, and what is wrong with them."""
    kept = read_receipts(folder)
    receipts = [
        {
            **{key: line.get(key) for key in ("time", "round", "kind", "decision", "bytes", "hash", "sent")},
            "run": printable(line.get("run", ""), _LONGEST),
            "told": printable(told_line(line), _MOST_TOLD),
        }
        for line in reversed(kept.receipts[-_MOST_RECEIPTS:])
    ]
    return {"receipts": receipts, "problem": printable(kept.problem, _LONGEST)}


def _models(store: DiskStore) -> Iterator[dict[str, Any]]:
    """Yield the models that are kept, the newest run's first."""
    for name, card in kept_models(store).items():
        path, metric = store.path(name), card.metric
        if (state := state_of(path)) is None:
            continue  # erased since its card was read
        score = figure_text(card.figures.get(metric.name), metric.is_share)
        whose = "shared" if card.which == "global" else "own"
        yield {
            "name": name,
            "run": card.run_key,
            "title": printable(f"{whose} model of {card.strategy} on {card.task}, {card.date[:10]}", _LONGEST),
            "figure": f"{printable(metric.name, _SHORT)} {score} on your test data, round {card.round}",
            "file": str(path),
            "bytes": state.st_size,
        }


def _run(run: RunStatus, model: dict[str, Any] | None) -> dict[str, Any]:
    data = {
        "run": printable(run.run_key, _LONGEST),
        "name": printable(run.name, _LONGEST),
        "state": run.state,
        "line": printable(run.line, _MOST_TOLD if run.state is RunState.WAITING else _LONGEST),
        "can_approve": run.state is RunState.WAITING,
        "can_leave": run.state in GOES_ON,
        "left": run.state in (RunState.LEFT_BY_OWNER, RunState.LEFT_BY_POLICY, RunState.DAMAGED),
    }
    if (did := run.activity) is None:
        return data
    return data | {
        "joined": did.done.get("joined", 0),
        "sat_out": did.done.get("sat-out", 0),
        "failed": did.done.get("failed", 0),
        "seconds": did.seconds,
        "bytes_up": did.bytes_up,
        "bytes_down": did.bytes_down,
        "last": did.last,
        "judged": f"round {did.server_round}: {printable(did.judged.compared, _LONGEST)}" if did.judged else None,
        "goodwill": printable(did.goodwill_line, _LONGEST),
        "measure": _measure(did.curve, did.test, model) if did.test else None,
    }


def _measure(curve: Sequence[tuple[int, float]], test: Judged, model: dict[str, Any] | None) -> dict[str, Any]:
    """Return the shared model's score on the owner's test data beside the own model's, and which is preferred."""
    return {
        "metric": printable(test.metric, _SHORT),
        "shared": figure_text(test.score, test.share),
        "alone": None if test.alone is None else figure_text(test.alone, test.share),
        "alone_score": test.alone,
        "prefers": "shared" if test.met or test.alone is None else "own",
        "rounds": [point[0] for point in curve],
        "scores": [point[1] for point in curve],
        "share": test.share,
        "model": model,
    }


def _decisions(runs: Iterable[RunStatus]) -> list[dict[str, Any]]:
    """Return the latest decisions of all runs, the latest first."""
    decisions = [(run.name, decided) for run in runs if run.activity for decided in run.activity.decisions]
    return [
        {
            "at": decided.at,
            "run": printable(name, _LONGEST),
            "round": decided.server_round,
            "what": printable(decided.what, _SHORT),
            "why": printable(decided.why, _LONGEST),
            "colour": _COLOURS.get(decided.what, ""),
        }
        for name, decided in sorted(decisions, key=lambda pair: -pair[1].at)[:KEPT_DECISIONS]
    ]


def _limits(folder: Path) -> Limits | None:
    """Return the folder's limits.

    None where they cannot be read.
    """
    try:
        return read_limits(folder)
    except ConfigError:
        return None


def limits_data(folder: Path, started_with: str = "") -> dict[str, Any]:
    """Return the limits for the page: each with unit and meaning, and a damaged file's problem.

    Args:
        folder: the state folder.
        started_with: limits that the client was started with, which go before those of the folder.
    """
    limits = _limits(folder)
    problem = "" if limits else "the limits that were kept cannot be read: choose some, and they are written anew"
    limits = limits or Limits()
    values, counts = limits.as_config(), limits.with_text(started_with).as_config()
    fields = [
        {
            "key": key,
            "value": values[key],
            "unit": fact(field, "unit"),
            "help": field.description,
            "instead": counts[key] if counts[key] != values[key] else None,
        }
        for key, field in Limits.described().items()
    ]
    presets = [{"name": name, "costs": costs} for name, (costs, _) in PRESETS.items()]
    return {"limits": fields, "problem": problem, "presets": presets, "preset": "" if problem else preset_of(limits)}


def volunteer_app(folder: Path, started_with: str = "") -> Starlette:
    """Return the page of the client that keeps its state in a folder, an ASGI app.

    Args:
        folder: the state folder.
        started_with: the limits that the client was started with, as `Limits.with_text` reads them.
    """

    def model(request: Request) -> Response:
        store, name = DiskStore(folder) if folder.is_dir() else None, request.path_params["name"]
        path = store.path(name) if store and name in kept_models(store) else None
        if path is None or (state := state_of(path)) is None:
            return JSONResponse({"said": "no such model"}, HTTPStatus.NOT_FOUND)
        return FileResponse(path, filename=f"{name}.safetensors", stat_result=state)

    async def trial(request: Request) -> Response:
        if busy.locked():
            return JSONResponse({"said": "the models are at work: wait for their answers"}, HTTPStatus.CONFLICT)
        async with busy:
            name, content = request.query_params.get("name", ""), await request.body()
            try:
                return JSONResponse(await run_in_threadpool(try_models, folder, name, content))
            except (ValueError, OSError) as error:
                return JSONResponse({"said": printable(error)}, HTTPStatus.BAD_REQUEST)

    busy = asyncio.Lock()

    def limits_with(values: dict[str, Any]) -> Limits:
        return (_limits(folder) or Limits()).with_values(values)

    def keep_some(body: dict[str, Any]) -> str:
        check_surroundings(limits_with(body), Surroundings())
        with changing(folder):
            write_limits(folder, limits_with(body))
        return "limits kept"

    def keep_all(body: dict[str, Any]) -> str:
        check_surroundings(limits := preset(body.get("preset")), Surroundings())
        write_limits(folder, limits)
        return f"limits are now {body['preset']}"

    def leave_run(body: dict[str, Any]) -> str:
        if not isinstance(body.get("run"), str):
            raise ConfigError("run is missing: which run to leave")
        leave(folder, body["run"])
        return "left for good: this device trains for the run no more"

    def approve_run(body: dict[str, Any]) -> str:
        approve(folder, str(body.get("run", "")))
        return "approved: this device takes part once the run asks again"

    def pause_client(body: dict[str, Any]) -> str:
        pause(folder)
        return "paused: this device stays connected, and works on nothing"

    def come_back(body: dict[str, Any]) -> str:
        reset(folder)
        return "back: runs that were left may ask this device again"

    actions: dict[str, Act] = {
        "approve": approve_run,
        "pause": pause_client,
        "resume": lambda body: resume(folder),
        "leave": leave_run,
        "come-back": come_back,
        "erase": lambda body: reset(folder, forget=True),
        "limits": keep_some,
        "preset": keep_all,
    }

    return Starlette(
        routes=[
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Route("/data.json", lambda request: JSONResponse(page_data(folder))),
            Route("/limits.json", lambda request: JSONResponse(limits_data(folder, started_with))),
            Route("/model/{name}", model),
            Route(TRIAL, trial, methods=["POST"]),
            *(
                Route(f"/do/{name}", button(act, HTTPStatus.BAD_REQUEST), methods=["POST"])
                for name, act in actions.items()
            ),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )
