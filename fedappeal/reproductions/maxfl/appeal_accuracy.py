"""MaxFL, figure 1: GM-Appeal beside test accuracy, an algorithm a point, for seen and for unseen clients."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import correlation, fmean

from fedappeal.reproductions.maxfl import opt_out
from fedappeal.reproductions.maxfl.settings import QUICK, STRATEGY, TWINS
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, Results, Unmeasured
from fedappeal.views.comparison.figures import COLOURS, new_figure, save
from fedappeal.views.comparison.measures import (
    ACCURACY_LATE,
    GM_APPEAL_LATE,
    UNSEEN_ACCURACY_LATE,
    UNSEEN_GM_APPEAL_LATE,
    Measure,
)

(TABLE_1,) = opt_out.EXPERIMENTS

_READINGS = ("", ", ask all", ", rate 0.05", ", always")
"""What the names of table 1's rows end with, in the readings that stand here."""

_CLIENTS = {
    "seen": (GM_APPEAL_LATE, ACCURACY_LATE),
    "unseen": (UNSEEN_GM_APPEAL_LATE, UNSEEN_ACCURACY_LATE),
}
"""Panels (a) and (b): what is across, what is up."""

_COLOURED = ("FedAvg", "MaxFL", *(name for name in STRATEGY if name not in ("FedAvg", "MaxFL")))


_QUICK = {**QUICK, "clients": 10, "unseen-clients": 5, "rounds": 4, "evaluate-every": 4, "mandatory-rounds": 2}


def _rows(suffix: str) -> tuple[Arm, ...]:
    return tuple(
        replace(arm, runs_in=TABLE_1.name) for arm in TABLE_1.arms if arm.label and arm.name == arm.label + suffix
    )


_GROUPS = tuple(map(_rows, _READINGS))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's coefficient: the correlation of the ranks, equal values sharing their mean rank.

    Raises:
        Unmeasured: all values of one side are equal, so that there is none.
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        raise Unmeasured("all values are equal")
    return correlation(_ranks(x), _ranks(y))


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]


def _rises(group: Sequence[Arm], clients: str) -> Claim:
    """Return the claim that accuracy rises with GM-Appeal from algorithm to algorithm; twins count once."""
    across, up = _CLIENTS[clients]

    def margin(number: Numbers) -> float:
        pairs = [(number(arm.name, across.key), number(arm.name, up.key)) for arm in group if arm.label not in TWINS]
        x, y = zip(*pairs, strict=True)
        return rank_correlation(x, y)

    text = f"{clients} clients: the higher an algorithm's GM-Appeal, the higher its accuracy (rank correlation)"
    return Claim(text, margin, group[0].group)


def _highest(group: Sequence[Arm], clients: str) -> Claim:
    (measure, others) = _CLIENTS[clients][1], [arm for arm in group if arm.label not in ("MaxFL", *TWINS)]
    (maxfl,) = (arm for arm in group if arm.label == "MaxFL")

    def margin(number: Numbers) -> float:
        return number(maxfl.name, measure.key) - max(number(arm.name, measure.key) for arm in others)

    text = f"{clients} clients: MaxFL has the highest test accuracy"
    return Claim(text, margin, group[0].group, "points", among=len(others) + 1)


def _figure(results: Results, stem: Path) -> None:
    """Draw a row of two panels a group: a large dot a mean, a small one a seed, a cross the paper's numbers."""
    groups = list(dict.fromkeys(arm.group for arm in results.arms))
    picture = new_figure(10.5, 3.3 * len(groups) + 0.6)
    panels = picture.subplots(len(groups), 2, squeeze=False)
    handles = {}
    for row, group in zip(panels, groups, strict=True):
        for axes, letter, (clients, (across, up)) in zip(row, "ab", _CLIENTS.items(), strict=True):
            for arm in (arm for arm in results.arms if arm.group == group):
                colour = COLOURS[_COLOURED.index(arm.label) % len(COLOURS)]
                x, y = results.numbers(arm.name, across), results.numbers(arm.name, up)
                axes.plot(x, y, "o", color=colour, markersize=3, alpha=0.6)
                (handles[arm.label],) = axes.plot([fmean(x)], [fmean(y)], "o", color=colour, markersize=8)
                at = [[_printed(arm, measure)] for measure in (across, up)]
                (paper,) = axes.plot(*at, "X", color=colour, markersize=8, alpha=0.55)
                if arm.label == "MaxFL":
                    handles["as the paper prints it"] = paper
            axes.set(xlabel=f"({letter}) {clients} clients: GM-Appeal", ylabel="test accuracy %", xlim=(-0.02, 0.42))
            axes.grid(alpha=0.3)
        row[0].set_title(group, loc="left", fontsize=10)
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    save(picture, stem)


def _printed(arm: Arm, measure: Measure) -> float:
    value = arm.paper[measure.beside]
    return float(value[0] if isinstance(value, tuple) else value)


EXPERIMENTS = (
    Experiment(
        name="maxfl-figure1",
        title="MaxFL: GM-Appeal beside test accuracy",
        source="MaxFL, figure 1",
        claim="A higher GM-Appeal results in a higher test accuracy, for seen and for unseen clients, because the "
        "server has more clients to select from; MaxFL, which maximises GM-Appeal, has the highest accuracy.",
        settings=TABLE_1.settings,
        arms=tuple(arm for group in _GROUPS for arm in group),
        numbers_of=TABLE_1.name,
        measures=opt_out.MEASURES,
        quick=Quick(_QUICK, ("FedAvg", "MaxFL")),
        claims=tuple(
            claim(group, clients) for group in _GROUPS for clients in _CLIENTS for claim in (_rises, _highest)
        ),
        figure=_figure,
        notes="""\
- The figure is table 1's numbers, Fashion-MNIST, as points: "more details in Table 1", says its caption. Its runs are
  table 1's here too: nothing is run for this page that [table 1](maxfl-table1.md) does not run, and its numbers are
  taken over from there. Which algorithms the figure shows is not in its caption; here it is all of table 1's.
- The groups are four of table 1's readings: its first two, which have all algorithms; the one whose GM-Appeal is
  nearest to the paper's (rate 0.05); and the one in which MaxFL has the highest accuracy in every seed (no opt-out).
- The rank correlation is Spearman's over the algorithms, within a seed; FedProx, whose rows cannot be told from
  FedAvg's, is left out of it. With six algorithms a single seed's is significant from 0.89 on only, with three never.
- That a higher GM-Appeal goes with a higher accuracy does not show that it causes it.
- In a seed in which all algorithms but those left out have the same GM-Appeal, such as 0, there is no correlation:
  it is "without a number".
- Large dots are means over seeds, small ones the seeds, of the last 20 rounds.
""",
        twins=TWINS,
    ),
)
