"""Who stayed, of the same clients under several settings: a table and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedappeal.protocol.metric import Metric, figure_text
from fedappeal.record import looks
from fedappeal.record.reader import Record
from fedappeal.views.comparison.measures import Figure, new_figure

LAST = 10
"""Rounds at the end of a run in which joining is counted."""
_AWAY, _WILLING, _ON_REQUEST, _LEFT, _NOT_ASKED = range(5)
_LOOKS = {
    _WILLING: looks.LOOKS[looks.JOINED],
    _ON_REQUEST: looks.LOOKS[looks.ON_REQUEST],
    _AWAY: looks.LOOKS[looks.SAT_OUT],
    _LEFT: looks.LOOKS[looks.LEFT],
    _NOT_ASKED: looks.NOT_ASKED,
}
"""How each of a client's rounds looks."""
_JOINED = frozenset({"joined", "surplus", "refused"})


@dataclass(frozen=True, eq=False)
class WhoStayed:
    """The decisions of one run's clients.

    Attributes:
        strategy: of the run.
        metric: the task's primary metric.
        clients: number of clients that train.
        rounds: shape ``(clients, rounds)``: what each client did in each round.
        ended: why the run ended before its last round; empty where it did not, or is under way.
        willing: share that joined in the free ones of the last `LAST` rounds, of all clients; where a round asks some
            of them, of those that it asked or that have left. None: no round was free, or the run ended
            early.
        served: share of the clients whose test metric is at least as good with the model as with their own, in the
            last evaluated round; None: not reported.
        score: mean of the metric over clients in that round; None: not evaluated.
        used: the same of the model as the clients use it, after steps of their own; None: they use it as it is.
        asked: mandatory rounds of the run.
    """

    strategy: str
    metric: Metric
    clients: int
    rounds: NDArray[np.int8]
    ended: str
    willing: float | None
    served: float | None
    score: float | None
    used: float | None
    asked: int

    @classmethod
    def of(cls, path: Path) -> "WhoStayed":
        """Read a run's folder.

        Raises:
            ConfigError: it cannot be read.
        """
        record = Record(path)
        settings, metric, lines, decided = record.settings, record.metric, record.history, record.decisions
        clients = {client: row for row, client in enumerate(sorted({line["client-id"] for line in decided}))}
        columns = {int(line["round"]): column for column, line in enumerate(lines)}
        rounds = np.full((len(clients), len(lines)), _NOT_ASKED, np.int8)
        for line in decided:
            if (column := columns.get(int(line["round"]))) is not None:
                rounds[clients[line["client-id"]], column] = _code(line["decision"], lines[column]["mandatory"])
        left = np.maximum.accumulate(rounds == _LEFT, axis=1)
        rounds[left] = _LEFT
        free = [column for column, line in enumerate(lines) if not line["mandatory"]]
        late = rounds[:, [column for column in free if column >= len(lines) - LAST]]
        # Where a round asks a sample of the clients, the others say nothing; one that has left is asked no more.
        number, sampled = int(settings["clients"]), bool(settings.get("clients-per-round"))
        ended = str((record.standing.end or {}).get("reason", "")) if len(lines) < settings["rounds"] else ""
        asked = int((late != _NOT_ASKED).sum()) if sampled else number * late.shape[1]
        willing = float((late == _WILLING).sum() / asked) if asked and not ended else None
        last: dict[str, Any] = next((line for line in reversed(lines) if line.get(metric.column) is not None), {})
        return cls(
            *(str(settings["strategy"]), metric, number, rounds, ended, willing, last.get("served")),
            *(last.get(metric.column), last.get(f"adapted_{metric.column}"), len(lines) - len(free)),
        )

    def row(self) -> tuple[str, ...]:
        """Return the cells of its row under `headings`."""
        return (
            self.strategy,
            f"ended in round {self.rounds.shape[1]}" if self.ended else _share(self.willing),
            _share(self.served),
            *(figure_text(value, self.metric.is_share) for value in (self.score, self.used)),
            str(self.asked),
        )


def _code(decision: str, mandatory: bool) -> int:
    if decision in _JOINED:
        return _ON_REQUEST if mandatory else _WILLING
    return _LEFT if decision == "left" else _AWAY


def headings(metric: Metric) -> tuple[str, ...]:
    """Return the headings of the table's columns."""
    name = metric.name
    return ("strategy", "stayed", "served", f"{name} as sent", "as used", "asked")


NOTE = (
    f"stayed: clients that joined of their own accord, on average over the free ones of the last {LAST} rounds; "
    "served: clients whose test data the model serves at least as well as their own; "
    "as used: after steps of the clients' own; asked: mandatory rounds"
)
"""What the columns mean."""


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def draw(runs: Sequence[WhoStayed]) -> Figure:
    """Return a figure with a panel a run, clients as rows, rounds as columns."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    codes = sorted(_LOOKS)
    colours = ListedColormap([_LOOKS[code].colour for code in codes])
    height = 0.6 + max(1.2, min(4.0, 0.16 * max(run.clients for run in runs)))
    figure = new_figure(9, height * len(runs) + 0.5)
    panels = figure.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axes, run in zip(panels, runs, strict=True):
        norm = BoundaryNorm([code - 0.5 for code in (*codes, len(codes))], len(codes))
        clients, rounds = run.rounds.shape
        edges = (0.5, rounds + 0.5, clients + 0.5, 0.5)
        axes.imshow(run.rounds, colours, norm, aspect="auto", interpolation="nearest", extent=edges)
        stayed = "" if run.willing is None else f": {100 * run.willing:.0f} % stay"
        axes.set_title(f"{run.strategy}{stayed}", loc="left", fontsize=11, fontweight="bold")
        axes.set_ylabel(f"{run.clients} clients")
        axes.set_yticks([])
    panels[-1].set_xlabel("round")
    shown = np.unique(np.concatenate([run.rounds.ravel() for run in runs]))
    patches = [Patch(facecolor=look.colour, label=look.title) for code, look in _LOOKS.items() if code in shown]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    return figure
