"""The charts of a run's report, made again on demand while it runs, at a bounded cost."""

import json
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedappeal.record.files import HISTORY
from fedappeal.settings.config import ConfigError
from fedappeal.views.live.view import SHARE
from fedappeal.views.report.chart import check_plotly
from fedappeal.views.report.report import run_charts

SHORTEST = 5.0
"""Seconds, at least, until charts are made again."""


class Charts:
    """Charts of the run that is shown; one making of them at a time, which all pages share.

    Args:
        path: returns the run's folder.
        over: returns whether the run has ended: its last charts are made at once.
        clock: returns seconds that only grow.
        spent: returns the CPU seconds of this thread.
    """

    def __init__(
        self,
        path: Callable[[], Path | None],
        over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._path, self._over, self._clock, self._spent = path, over, clock, spent
        self._lock = threading.Lock()
        self._made_of: tuple[Path | None, int] = (None, -1)
        self._text, self._due, self._drawn = "", 0.0, False

    def text(self) -> str:
        """Return the charts as JSON: ``charts``, the ``verdict`` in words, ``again`` (seconds), or a ``note``."""
        with self._lock:
            path, began = self._path(), self._spent()
            made_of = (path, _size(path))
            wanted = self._clock() >= self._due or self._over() or path != self._made_of[0]
            if made_of != self._made_of and wanted:
                self._text, drawn = _made(path)
                self._made_of = made_of
                # The first time pays for loading Plotly, which says nothing of the next.
                cost = self._spent() - began if self._drawn else 0.0
                self._drawn = self._drawn or drawn
                self._due = self._clock() + max(SHORTEST, cost / SHARE)
            return f'{{"again":{max(0.0, self._due - self._clock()):.1f},{self._text[1:]}'


def _size(path: Path | None) -> int:
    try:
        return (path / HISTORY).stat().st_size if path is not None else 0
    except OSError:
        return 0


def _made(path: Path | None) -> tuple[str, bool]:
    """Return the charts as JSON, and whether there are any."""
    try:
        check_plotly()
        if path is None or not _size(path):
            return _note("charts come with the first finished round"), False
        verdict, charts = run_charts(path)
    except ConfigError as error:
        return _note(str(error)), False
    from plotly.utils import PlotlyJSONEncoder

    shown: list[dict[str, Any]] = [
        {"title": chart.title, "alt": chart.alt, "tall": chart.tall, "figure": chart.figure} for chart in charts
    ]
    return json.dumps({"note": "", "verdict": verdict, "charts": shown}, cls=PlotlyJSONEncoder), True


def _note(text: str) -> str:
    return json.dumps({"note": text, "verdict": "", "charts": []})


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """Return Plotly's script, from its package; empty where that is not installed."""
    try:
        check_plotly()
    except ConfigError:
        return ""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
