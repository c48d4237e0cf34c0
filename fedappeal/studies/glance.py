"""A page's first picture: the gaps of claims, paired by seed, with their intervals. Needs matplotlib.

It is drawn from a page's numbers alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from fedappeal.studies.experiment import Claim, Results
from fedappeal.studies.verdict import Verdict, verdicts
from fedappeal.views.comparison.figures import COLOURS, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAPERS = COLOURS[1]


def gaps(groups: Sequence[str], picked: Callable[[Claim], bool]) -> Callable[[Results, Path], None]:
    """Return a figure: a panel a group, a row a claim; all gaps have one unit.

    Args:
        groups: the groups of claims that are shown; one without a run is left out.
        picked: whether a claim is shown.
    """

    def figure(results: Results, stem: Path) -> None:
        found = [v for v in verdicts(results) if v.gap and v.claim.group in groups and picked(v.claim)]
        panels = [(group, [v for v in found if v.claim.group == group]) for group in groups]
        panels = [(group, rows) for group, rows in panels if rows]
        texts = list(dict.fromkeys(verdict.claim.text for _, rows in panels for verdict in rows))
        picture = new_figure(3.4 + 3.2 * max(len(panels), 1), 1.3 + 0.42 * len(texts))
        axes = picture.subplots(1, max(len(panels), 1), squeeze=False, sharex=True, sharey=True)[0]
        for panel, (group, rows) in zip(axes, panels, strict=False):
            panel.axvline(0, color="#000000", linewidth=0.8)
            for verdict in rows:
                _row(panel, texts.index(verdict.claim.text), verdict)
            panel.set_yticks(range(len(texts)), [fill(text, 44) for text in texts], fontsize=8)
            panel.set_title(fill(group, 44), loc="left", fontsize=9)
            panel.set_xlabel(f"gap, {rows[0].claim.unit or 'of the number itself'}", fontsize=8)
            panel.grid(alpha=0.3, axis="x")
        axes[0].invert_yaxis()
        picture.suptitle(
            "dots: seeds; line: mean and 95 % interval"
            + ("; cross: the paper's" if any(v.paper is not None for v in found) else ""),
            fontsize=8,
        )
        save(picture, stem)

    return figure


def _row(panel: "Axes", place: int, verdict: Verdict) -> None:
    if not (gap := verdict.gap):
        return
    panel.plot(verdict.margins, [place + 0.22] * len(verdict.margins), "o", color=COLOURS[5], markersize=3.5)
    panel.errorbar(gap.mean, place, xerr=gap.half, fmt="D", color=COLOURS[0], markersize=4, capsize=3)
    if verdict.paper is not None:
        panel.plot([verdict.paper], [place], "X", color=_PAPERS, markersize=7)
