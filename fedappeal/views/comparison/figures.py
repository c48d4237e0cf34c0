"""What all figures share: colours, dashes, an empty figure, files that repeat. Needs matplotlib."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedappeal.settings.config import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000", "#8c564b")
"""Okabe and Ito's palette: told apart by colour-blind readers too."""

DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (8, 2, 2, 2)), (0, (4, 3)))
"""By colour: where curves coincide, the lower ones show through the gaps."""


def check_plots() -> None:
    """Check that figures can be drawn.

    Raises:
        ConfigError: matplotlib is not installed; names the extra.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("figures need matplotlib: pip install 'fedappeal[plots]'") from None


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches."""
    check_plots()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", stem: Path) -> None:
    """Write ``stem.png`` and ``stem.svg``; a figure drawn again from the same numbers gives the same files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    for ending in (".png", ".svg"):
        stem.with_name(stem.name + ending).write_bytes(picture_bytes(figure, ending))


def picture_bytes(figure: "Figure", ending: str) -> bytes:
    """Return a figure as a file's content.

    Args:
        figure: the figure.
        ending: ``.png`` or ``.svg``.
    """
    import matplotlib as mpl

    written = io.BytesIO()
    undated = {"Date": None} if ending == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "fedappeal"}):  # else its names are others each time
        figure.savefig(written, format=ending.removeprefix("."), dpi=90, metadata=undated)
    return written.getvalue()
