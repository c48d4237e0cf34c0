"""`Runs`: the runs of a sweep, in order, with what varies between them; and their picture."""

import html
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fedappeal.api.run import FIGURES, Run, shown_value
from fedappeal.protocol.foreign_text import printable
from fedappeal.system.files import path_of, replace_file
from fedappeal.system.wording import in_columns
from fedappeal.views.comparison.curves import check_picture, draw_comparison
from fedappeal.views.comparison.export import pandas
from fedappeal.views.comparison.measures import picture_bytes
from fedappeal.views.comparison.recorded_runs import read_runs
from fedappeal.views.comparison.result import compare_runs

if TYPE_CHECKING:
    import pandas as pd


class Picture:
    """A figure of GM-Appeal, metric, participation and loss over the rounds.

    A colour and a band for each group of runs.
    """

    def __init__(self, runs: Iterable[Run], baseline: str = "") -> None:
        """Draw it; needs matplotlib.

        Args:
            runs: runs that differ in their seeds alone are a group.
            baseline: as `fedappeal.compare` takes it.

        Raises:
            ConfigError: no run has a finished round, or matplotlib is not installed.
        """
        check_picture(Path("picture.png"))
        self.figure = draw_comparison(compare_runs(read_runs(runs)[0], baseline))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture into a ``.png`` or ``.svg`` file.

        Raises:
            ConfigError: another ending.
        """
        check_picture(path_of("path", path))
        replace_file(Path(path), picture_bytes(self.figure, Path(path).suffix))

    def _repr_png_(self) -> bytes:
        return picture_bytes(self.figure, ".png")


class Runs(Sequence[Run]):
    """Runs in order, each with the settings in which it differs from the others.

    Attributes:
        varied: for each run, its values of what varies, by setting.
    """

    def __init__(self, runs: Sequence[Run], varied: Sequence[Mapping[str, Any]]) -> None:
        """Keep the runs.

        Args:
            runs: in order.
            varied: as many; the same settings for each.
        """
        self._runs = list(runs)
        self.varied = list(varied)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> "Runs": ...

    def __getitem__(self, index: int | slice) -> "Run | Runs":
        """Return a run, or some of them."""
        return Runs(self._runs[index], self.varied[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def history(self) -> "pd.DataFrame":
        """All runs' rounds, a row each, after columns of varied settings; needs pandas."""
        return self._whole_frame([run.history for run in self])

    @property
    def clients(self) -> "pd.DataFrame":
        """All runs' clients as a data frame, a row a round and client.

        After columns of what varies between the runs; needs pandas.
        """
        return self._whole_frame([run.clients for run in self])

    def picture(self, baseline: str = "") -> Picture:
        """Return all runs' curves as a picture; needs matplotlib.

        Args:
            baseline: as `fedappeal.compare` takes it.
        """
        return Picture(self, baseline)

    def summary(self) -> "pd.DataFrame":
        """Return a row a run: varied settings and the run's summary; needs pandas."""
        rows = [{**varied, **run.summary()} for run, varied in zip(self, self.varied, strict=True)]
        return pandas().DataFrame(rows)

    def __repr__(self) -> str:
        return "\n".join([f"{len(self)} runs", *in_columns(self._table())])

    def _repr_html_(self) -> str:
        header, *rows = self._table()
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><tr>{head}</tr>{body}</table>"

    def _table(self) -> list[list[str]]:
        summaries = [run.summary() for run in self]
        columns = list(dict.fromkeys(key for summary in summaries for key in summary if key in FIGURES))
        metrics = list(dict.fromkeys(run.metric.column for run in self))
        columns = [*metrics, *columns]
        settings = list(self.varied[0]) if self.varied else []
        table = [[*settings, "rounds", *(column.replace("_", " ") for column in columns)]]
        for summary, varied in zip(summaries, self.varied, strict=True):
            values = [shown_value(summary[column]) if column in summary else "-" for column in columns]
            table.append(
                [*(printable(varied[name]) for name in settings), f"{summary['rounds']} of {summary['of']}", *values]
            )
        return table

    def _whole_frame(self, frames: Sequence["pd.DataFrame"]) -> "pd.DataFrame":
        pd = pandas()
        if not frames:
            return pd.DataFrame()
        for frame, varied in zip(frames, self.varied, strict=True):
            for place, (name, value) in enumerate(varied.items()):
                frame.insert(place, name if name not in frame else f"setting_{name}", value)
        joined = pd.concat(frames, ignore_index=True)
        joined.attrs["units"] = {key: unit for frame in frames for key, unit in frame.attrs.get("units", {}).items()}
        return joined
