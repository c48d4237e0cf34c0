"""A comparison of runs as a picture: shown by a notebook, or saved."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from fedappeal.api.run import Run
from fedappeal.system.files import replace_file
from fedappeal.views.comparison.picture import check_picture, draw_comparison, picture_bytes
from fedappeal.views.comparison.result import compare_runs
from fedappeal.views.comparison.runs import read_runs


class Picture:
    """GM-Appeal, metric, participation and loss over the rounds: a colour and a band for each group of runs."""

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
        """Write it into a file that ends in ``.png`` or ``.svg``.

        Raises:
            ConfigError: another ending.
        """
        check_picture(Path(path))
        replace_file(Path(path), picture_bytes(self.figure, Path(path).suffix))

    def _repr_png_(self) -> bytes:
        return picture_bytes(self.figure, ".png")
