"""`fedappeal compare`: runs side by side."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedappeal.experiments.framework.comparison import comparison_tables, draw_comparison, read_runs
from fedappeal.protocol.config import ConfigError


def compare_runs(paths: Sequence[Path], plot: Path | None) -> None:
    """Print the runs side by side; draw them where a file is named.

    Raises:
        ConfigError: a folder without a run, or a picture that cannot be drawn.
    """
    if not paths:
        raise ConfigError("which runs? name their folders")
    runs = read_runs(paths)
    console = Console(highlight=False)
    if plot:
        draw_comparison(runs, plot)
    for table in comparison_tables(runs):
        for part in table.rich():
            console.print(part)
    if plot:
        console.print(f"the picture: [bold]{plot}[/]", soft_wrap=True)
