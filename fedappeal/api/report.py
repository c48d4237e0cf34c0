"""A run's report as an object that shows itself in a notebook."""

import html
from os import PathLike
from pathlib import Path

from fedappeal.system.files import path_of
from fedappeal.views.report.report import ReportOptions, report_text, write_report


class Report:
    """The report of a run; a notebook shows it in a frame of its own.

    Neither's styles and scripts reach the other.
    """

    def __init__(self, path: Path, holder: object = None) -> None:
        """Keep a run's folder, and the object that owns a temporary one."""
        self._path, self._holder = path, holder

    def save(self, output: str | PathLike[str]) -> Path:
        """Write the page into one file that works offline, about 5 MB; return the file.

        Raises:
            ConfigError: no round is finished, or a file that cannot be written.
        """
        return write_report([self._path], ReportOptions(path_of("output", output), single_file=True))

    def __repr__(self) -> str:
        return f"Report({self._path.name})"

    def _repr_html_(self) -> str:
        text, style = html.escape(report_text(self._path)), "width:100%;height:800px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{text}"></iframe>'
