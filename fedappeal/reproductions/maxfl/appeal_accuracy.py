"""MaxFL, figure 1: GM-Appeal beside test accuracy, an algorithm a point, for seen and for unseen clients."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from fedappeal.reproductions.maxfl import opt_out
from fedappeal.reproductions.maxfl.settings import QUICK, STRATEGY, Reading, over
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, Results, Unmeasured
from fedappeal.views.comparison import measures
from fedappeal.views.comparison.measures import COLOURS, Figure, new_panels

TABLE_1 = opt_out.EXPERIMENTS[0]

_READINGS = ("", ", ask all", ", rate 0.05", ", always")
"""What the names of table 1's rows end with, in the readings that stand here."""

_CLIENTS = {
    "seen": (measures.GM_APPEAL_LATE, measures.ACCURACY_LATE),
    "unseen": (measures.UNSEEN_GM_APPEAL_LATE, measures.UNSEEN_ACCURACY_LATE),
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
    """Return Spearman's coefficient.

    Raises:
        Unmeasured: all values of one side are equal, so that there is none.
    """
    from scipy.stats import spearmanr

    if len(set(x)) < 2 or len(set(y)) < 2:
        raise Unmeasured("all values are equal")
    return float(spearmanr(x, y).statistic)


def _rises(group: Sequence[Arm], clients: str) -> Claim:
    """Return the claim that accuracy rises with GM-Appeal from algorithm to algorithm; FedProx is as FedAvg."""
    across, up = _CLIENTS[clients]

    def margin(number: Numbers) -> float:
        pairs = [(number(arm.name, across.key), number(arm.name, up.key)) for arm in group if arm.label != "FedProx"]
        x, y = zip(*pairs, strict=True)
        return rank_correlation(x, y)

    text = f"{clients} clients: accuracy rises with GM-Appeal over the algorithms (rank correlation)"
    return Claim(text, margin, group[0].group, ours=True)


def _highest(group: Sequence[Arm], clients: str) -> tuple[Claim, ...]:
    measure, suffix = _CLIENTS[clients][1], group[0].name.removeprefix(group[0].label)
    reading = Reading(group[0].group, suffix, {})
    return tuple(over(measure, reading, arm.label) for arm in group if arm.label != "MaxFL")


def _figure(results: Results) -> Figure:
    """Draw a row of two panels a group: a large dot a mean, a small one a seed, a cross the paper's numbers."""
    groups = results.groups
    picture, panels = new_panels(10.5, 3.3 * len(groups) + 0.6, len(groups), 2)
    handles = {}
    for row, (group, arms) in zip(panels, groups.items(), strict=True):
        for axes, letter, (clients, (across, up)) in zip(row, "ab", _CLIENTS.items(), strict=True):
            for arm in arms:
                colour = COLOURS[_COLOURED.index(arm.label) % len(COLOURS)]
                x, y = results.numbers(arm.name, across), results.numbers(arm.name, up)
                (handles["small: one seed"],) = axes.plot(x, y, "o", color=colour, markersize=3, alpha=0.6)
                (handles[arm.label],) = axes.plot([fmean(x)], [fmean(y)], "o", color=colour, markersize=8)
                at = [[arm.printed(measure)] for measure in (across, up)]
                (paper,) = axes.plot(*at, "X", color=colour, markersize=8, alpha=0.55)
                if arm.label == "MaxFL":
                    handles["as the paper prints it"] = paper
            axes.set(xlabel=f"({letter}) {clients} clients: GM-Appeal", ylabel="test accuracy %", xlim=(-0.001, 0.45))
            axes.set_xscale("symlog", linthresh=0.02, linscale=0.6)
            axes.set_xticks((0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4), ("0", "0.01", "0.02", "0.05", "0.1", "0.2", "0.4"))
        row[0].set_title(group, loc="left", fontsize=10)
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return picture


EXPERIMENTS = (
    Experiment(
        name="maxfl-figure1",
        title="MaxFL: GM-Appeal beside test accuracy",
        source="MaxFL, figure 1",
        claim="A higher GM-Appeal results in a higher test accuracy, for seen and for unseen clients, because the "
        "server has more clients to select from; MaxFL, which maximises GM-Appeal, has the highest accuracy.",
        settings=TABLE_1.settings,
        arms=tuple(arm for group in _GROUPS for arm in group),
        measures=opt_out.MEASURES,
        quick=Quick(_QUICK, ("FedAvg", "MaxFL")),
        claims=tuple(
            claim
            for group in _GROUPS
            for clients in _CLIENTS
            for claim in (_rises(group, clients), *_highest(group, clients))
        ),
        glances={"": _figure},
        notes="""\
- The figure is [table 1](maxfl-table1.md)'s numbers as points; its runs are table 1's. The groups are four of its
  readings: the first two; the one whose GM-Appeal is nearest to the paper's; the one without opt-out.
- Rank correlation: Spearman's over the algorithms but FedProx, within a seed; none where all have the same
  GM-Appeal. That a higher GM-Appeal goes with a higher accuracy does not show that it causes it.
- Large dots are means over seeds, small ones the seeds, of the last 20 rounds; crosses the paper's.
""",
    ),
)
