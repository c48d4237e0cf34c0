"""`fedappeal verify`: whether a run's folder is as it was written."""

import sys
from pathlib import Path

import typer

from fedappeal.record.verify import damages, unchecked
from fedappeal.views.terminal.shown import complain


def verify_run(path: Path) -> None:
    """Print what is damaged, and end with exit code 1; else say that nothing is.

    Raises:
        ConfigError: the folder holds no run.
    """
    found = list(damages(path))
    for line in unchecked(path):
        typer.echo(line)
    for line in found:
        complain(line, prefix="")
    if found:
        sys.exit(1)
    typer.echo(f"'{path}' is as it was written")
