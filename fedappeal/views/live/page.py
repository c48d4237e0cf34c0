"""The live page as an app: its files, what is new each second, the charts, and what its buttons do."""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fedappeal.protocol.foreign_text import printable
from fedappeal.record.lines import HISTORY
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.views.live.actions import NotDone
from fedappeal.views.live.clients import client_names
from fedappeal.views.live.members import CHANGES
from fedappeal.views.live.view import SHARE, View
from fedappeal.views.report.charts import PLOTLY
from fedappeal.views.report.recorded import NO_NAMES
from fedappeal.views.report.report import DRAWING, report_text, run_charts
from fedappeal.web.access import CHART_POLICY
from fedappeal.web.buttons import Act, button
from fedappeal.web.serving import PagePlace, ServedPage, serve_page

REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; frame-ancestors 'none'"
)
"""A report's scripts are its own, and of no origin: they reach neither this page nor its cookie."""
SHORTEST = 5.0
"""Seconds, at least, until charts are made again."""


class Charts:
    """The shown run's charts, made once for all pages.

    One making of them at a time.

    Args:
        path: returns the run's folder.
        over: returns whether the run has ended: its last charts are made at once.
        clock: returns seconds that only grow.
        spent: returns the CPU seconds of this thread.
        names: returns what the clients of a folder's run are called, by client-id.
    """

    def __init__(
        self,
        path: Callable[[], Path | None],
        over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
        names: Callable[[Path], Mapping[str, str]] = lambda path: NO_NAMES,
    ) -> None:
        self._path, self._over, self._clock, self._spent, self._names = path, over, clock, spent, names
        self._lock = threading.Lock()
        self._made_of: tuple[Path | None, int] = (None, -1)
        self._text, self._due = "", 0.0

    def text(self) -> str:
        """Return the charts as JSON: ``charts``, the ``verdict`` in words, ``again`` (seconds), or a ``note``."""
        with self._lock:
            path, began = self._path(), self._spent()
            made_of = (path, _size(path))
            wanted = self._clock() >= self._due or self._over() or path != self._made_of[0]
            if made_of != self._made_of and wanted:
                self._text, self._made_of = _charts_text(path, self._names), made_of
                self._due = self._clock() + max(SHORTEST, (self._spent() - began) / SHARE)
            return f'{{"again":{max(0.0, self._due - self._clock()):.1f},{self._text[1:]}'


def _size(path: Path | None) -> int:
    try:
        return (path / HISTORY).stat().st_size if path is not None else 0
    except OSError:
        return 0


def _charts_text(path: Path | None, names: Callable[[Path], Mapping[str, str]]) -> str:
    """Return the charts as JSON, or why there are none."""
    made: dict[str, Any] = {"note": "charts come with the first finished round", "verdict": "", "charts": []}
    try:
        if path is not None and _size(path):
            verdict, charts = run_charts(path, names(path))
            made = {"note": "", "verdict": verdict, "charts": [vars(chart) for chart in charts]}
    except ConfigError as error:
        made["note"] = str(error)
    return json.dumps(made)


log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"


def page_app(view: View) -> Starlette:
    """Return the live page, an ASGI app."""

    def names(path: Path) -> dict[str, str]:
        return client_names(Record(path).events, view.nodes)

    charts = Charts(lambda: view.path, lambda: view.over, names=names)

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def drawing(request: Request) -> Response:
        return Response(DRAWING, media_type="text/javascript")

    def news(request: Request) -> Response:
        texts = (request.query_params.get(name, "") for name in ("seen", "after"))
        return JSONResponse(view.news(*(int(text) if re.fullmatch("[0-9]{1,9}", text) else 0 for text in texts)))

    def chart_data(request: Request) -> Response:
        return Response(charts.text(), media_type="application/json")

    async def plotly(request: Request) -> Response:
        return FileResponse(PLOTLY, headers={"Cache-Control": "private, max-age=3600"}, media_type="text/javascript")

    actions: dict[str, Act] = {
        "stop": lambda body: view.stop(_text(body, "run")),
        "resume": lambda body: view.resume(_total(_text(body, "rounds"))),
        "start": lambda body: view.start(_text(body, "file")),
        "choose": lambda body: view.choose(_text(body, "run")),
        **{name: partial(view.change_members, name) for name in CHANGES},
    }

    def report(request: Request) -> Response:
        try:
            path = view.folder_of(printable(request.query_params.get("run", ""), 40))
            text = report_text(path, names(path))
        except (NotDone, ConfigError) as error:
            return PlainTextResponse(f"{printable(error)}\n", HTTPStatus.CONFLICT)
        return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/data.json", news),
            Route("/charts.json", chart_data),
            Route("/drawing.js", drawing),
            Route("/plotly.js", plotly),
            *(Route(f"/{name}", button(act, HTTPStatus.CONFLICT), methods=["POST"]) for name, act in actions.items()),
            Route("/report", report),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
    )


def _text(body: Mapping[str, Any], key: str) -> str:
    """Return a text of a button's body; empty if it has none."""
    return printable(body.get(key, ""), 100)


def _total(rounds: str) -> int:
    """Return a total of rounds; 0 where none is given.

    Raises:
        ConfigError: it is no number of rounds.
    """
    if rounds and not (rounds.isascii() and rounds.isdigit() and 0 < len(rounds) < 10 and int(rounds)):
        raise ConfigError(f"rounds = '{rounds}' is not allowed: a whole number from 1")
    return int(rounds or 0)


@contextmanager
def live_page(view: View, place: PagePlace) -> Iterator[ServedPage]:
    """Serve a live page until the `with` ends, and a little longer where one is open: it shows how the run ended.

    Its folder is read while a page is open, and not else.

    Raises:
        ConfigError: as `fedappeal.web.serving.serve_page`.
    """
    view.refresh()
    with serve_page(page_app(view), place, CHART_POLICY) as page:
        try:
            yield page
        finally:
            try:
                view.refresh_at_end()
            except Exception as error:  # a page that fails never fails the run
                log.warning("page: %s: %s", type(error).__name__, error)
            time.sleep(view.stays())
