"""MaxFL, figures 4 and 5: clients that estimate a mean (appendix A.1, appendix C)."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedappeal.reproductions.maxfl import mean_estimation as mean
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, Results, ahead, at_least, at_most
from fedappeal.views.comparison.measures import Figure, Lines, Measure, last, new_figure
from strategies import FedAvg, MaxFL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEDAVG, MAXFL, CLIENT = "#0072b2", "#d55e00", "#b0b0b0"

TWO = {"(b) two clients, $\\hat\\gamma_G$ = 0.5": (-0.5, 0.5), "(b) two clients, $\\hat\\gamma_G$ = 3": (-3.0, 3.0)}
"""Estimates of two clients, of little and of much heterogeneity."""

AROUND = 4.0
"""How far a panel goes beyond the outermost estimates."""


def figure_4(results: Results) -> Figure:
    """Draw (a) from what was measured, (b) from the strategies themselves."""
    figure = new_figure(14, 3.9)
    left, *others = figure.subplots(1, 3)
    _appeal(left, results)
    _objectives(figure, others, TWO)
    return figure


def figure_5(results: Results) -> Figure:
    """Draw the objectives of three clients, and where the strategies end; the estimates are a case's true means."""
    cases: dict[tuple[float, ...], str] = {}
    for arm in results.arms:  # what differs in the noise alone is one panel
        cases.setdefault(tuple(arm.settings["means"]), arm.group.partition(": ")[2])
    titled = zip("abc", cases.items(), strict=True)
    figure = new_figure(11, 3.4)
    panels = figure.subplots(1, len(cases), squeeze=False)[0]
    _objectives(figure, panels, {f"({letter}) three clients, {name}": means for letter, (means, name) in titled})
    return figure


def _appeal(axes: "Axes", results: Results) -> None:
    x = np.array(mean.HETEROGENEITY)
    for arm, label, colour, style in (
        ("MaxFL", "MaxFL", MAXFL, "o-"),
        ("FedAvg", "FedAvg", FEDAVG, "s-"),
        ("MaxFL (ReLU)", "MaxFL with ReLU", "black", "x"),
    ):
        if runs := results.of(arm):
            y = np.mean([run.lines[0]["gm_appeal"] for run in runs], axis=0)
            axes.plot(x, np.where(y > 0, y, np.nan), style, color=colour, label=label, markersize=4.5)
    bound = np.array([mean.lemma_a1(squared**0.5) for squared in x])
    axes.plot(x[bound <= 1], bound[bound <= 1], "--", color=FEDAVG, alpha=0.6, label="FedAvg at most (Lemma A.1)")
    least = np.full(len(x), mean.theorem_a1())
    axes.plot(x, least, "--", color=MAXFL, alpha=0.6, label="MaxFL at least (Theorem A.1)")
    axes.set(
        title="(a) two clients: MaxFL's appeal stays, FedAvg's decays",
        xlabel="heterogeneity $\\gamma_G^2$, in units of $\\gamma^2$",
        xticks=range(0, 21, 4),
        ylabel="expected GM-Appeal",
        yscale="log",
        ylim=(1e-3, 1.3),
    )
    axes.legend(fontsize=8, loc="lower left")


def _objectives(figure: Figure, panels: Iterable["Axes"], cases: Mapping[str, Sequence[float]]) -> None:
    """Draw the objective with its clients' parts, and the solutions of the strategies' own rounds.

    FedAvg's is an open square, MaxFL's, its lowest minima, a dot: where they are the same, both are seen.
    """
    strategy = MaxFL(stabilizer=mean.STABILIZER)
    for axes, (title, means) in zip(panels, cases.items(), strict=True):
        estimates = np.array(means)
        w = np.linspace(estimates.min() - AROUND, estimates.max() + AROUND, 1201)
        parts = np.stack([mean.objective(w, estimate[None]) for estimate in estimates], axis=1)
        labels = ["one client's $\\sigma(F_k - \\rho_k)$", *"_" * (len(means) - 1)]
        axes.plot(w, parts, color=CLIENT, linewidth=1, label=labels)
        axes.plot(w, mean.objective(w, estimates), color="black", label="MaxFL's objective")
        average = np.array(mean.federated(FedAvg(), means, 0.0, 1)[-1:])
        square: Any = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 2, "label": "FedAvg's solution"}
        axes.plot(average, mean.objective(average, estimates), "s", color=FEDAVG, **square)
        minima = np.array([mean.federated(strategy, means, start, 200)[-1] for start in means])
        heights = mean.objective(minima, estimates)
        lowest = heights <= heights.min() + 1e-9
        axes.plot(minima[lowest], heights[lowest], "o", color=MAXFL, markersize=7, label="MaxFL's solution")
        axes.set(title=title, xlabel="model $w$", ylabel="objective (equation 3)", ylim=(0.48, 1.02))
        handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


_ALIKE: Mapping[str, Any] = {"means": [-0.1, 0.0, 0.1], "averages": [[0, 1, 2]]}

CASES: Mapping[str, Mapping[str, Any]] = {
    "Case 1: all alike": _ALIKE,
    "Case 1, a hundred times the samples (gamma = 0.1)": {**_ALIKE, "gamma": 0.1},
    "Case 2: all different": {"means": [0.0, 8.0, 24.0], "averages": [[0], [1], [2]]},
    "Case 3: two alike": {"means": [-0.1, 0.1, 12.0], "averages": [[0, 1]]},
}
"""Appendix A.1's three cases of three clients: true means, of which the paper gives no numbers, and its solution.

That is one of ``averages``: the mean of these clients' estimates.
"""

_NAMES = dict(zip(CASES, ("all alike", "all alike, more samples", "all different", "two alike"), strict=True))

_SHOWN = (0, 1, 4, 10, 20)
"""Values of gamma_G^2 that are columns of the table."""

_BOUNDED = tuple(squared for squared in _SHOWN if mean.lemma_a1(squared**0.5) < 1)
"""Those at which lemma A.1's bound says something of a share."""

_OBJECTIVES = {"FedAvg": "fedavg", "MaxFL (ReLU)": "relu", "MaxFL (log loss)": "log", "MaxFL": "maxfl"}


def _at(squared: int) -> Measure:
    def of(lines: Lines) -> float | None:
        appeals = dict(zip(lines[0]["heterogeneity"], lines[0]["gm_appeal"], strict=True))
        return float(appeals[squared])

    return Measure(f"at-{squared}", f"at gamma_G^2 = {squared}", of, digits=4)


_WHERE = f"at gamma_G^2 = {', '.join(map(str, _BOUNDED))}, where that is below 1"
_STEEPLY = "from column to column at least as steeply as lemma A.1's bound"
_CONSTANT = f"theorem A.1's constant, {mean.theorem_a1():.3f}"
_LOG_LOSS = "with the log loss in place of the sigmoid, MaxFL's solution is FedAvg's (within 1e-6, in every draw)"


def _bounded_above(number: Numbers) -> float:
    return min(mean.lemma_a1(squared**0.5) - number("FedAvg", f"at-{squared}") for squared in _BOUNDED)


def _decays(number: Numbers) -> float:
    return min(
        number("FedAvg", f"at-{m}") * mean.lemma_a1(n**0.5) - number("FedAvg", f"at-{n}") * mean.lemma_a1(m**0.5)
        for m, n in pairwise(_SHOWN)
    )


def _bounded_below(number: Numbers) -> float:
    return min(number("MaxFL", f"at-{squared}") - mean.theorem_a1() for squared in _SHOWN)


_FROM_AVERAGE = Measure(
    "from-average", "largest distance from the estimates' average", last("from_average"), better="", digits=6
)

_ONE = Measure("at-least-one", "draws that satisfy at least one client", last("at_least_one"), digits=3)
_PAIR = Measure("pair", "draws that satisfy clients 1 and 2", last("pair"), digits=3)
_AS_SAID = Measure("as-said", "draws whose solution is the paper's", last("as_said"), better="", digits=3)


_NEARLY = 0.99
"""Share of the draws in which a claim has to be true; the noise of an estimate has no bounds."""

_IN_NEARLY_ALL = f"in {100 * _NEARLY:.0f} % of the draws"


def _mostly(text: str, arm: str, measure: Measure, within: str = "") -> Claim:
    """Return the claim that a measure is near 1: true of nearly all draws."""
    return Claim(f"{text} ({within}{_IN_NEARLY_ALL})", at_least(arm, measure.key, _NEARLY), inclusive=True)


def _solution(text: str, arm: str) -> Claim:
    within = f"within {mean.SAME} standard deviations of an estimate, "
    return _mostly(text, arm, _AS_SAID, within)


def _more(case: str) -> Claim:
    margin = ahead(f"MaxFL, {case}", f"FedAvg, {case}", "gm-appeal")
    return Claim(f"{case}: MaxFL appeals to more clients than FedAvg", margin)


_NONE = f"two alike: FedAvg satisfies no client ({_IN_NEARLY_ALL})"
_NOTES = """\
- The paper's figure has no numbers to compare with.
- The local minimum is found with MaxFL's own round, not with SciPy, from the estimate of a client drawn at random
  (of three clients: the lowest of the minima found from each).
"""

EXPERIMENTS = (
    Experiment(
        name="maxfl-figure4",
        title="MaxFL: two clients estimate a mean",
        source="MaxFL, figure 4",
        claim="As heterogeneity grows FedAvg's GM-Appeal decays exponentially, and MaxFL's stays above a "
        "constant; with a convex function in place of the sigmoid, as ReLU or the log loss, MaxFL is FedAvg.",
        settings={"draws": 10_000, "gamma": 1.0},
        arms=tuple(Arm(name, {"objective": objective}) for name, objective in _OBJECTIVES.items()),
        measures=(*map(_at, _SHOWN), _FROM_AVERAGE),
        quick=Quick({"draws": 500}),
        claims=(
            Claim(f"FedAvg's GM-Appeal is at most lemma A.1's bound ({_WHERE})", _bounded_above, inclusive=True),
            Claim(f"FedAvg's GM-Appeal decays exponentially ({_STEEPLY})", _decays, inclusive=True, ours=True),
            Claim(f"MaxFL's GM-Appeal is at least {_CONSTANT}", _bounded_below, inclusive=True),
            Claim(_LOG_LOSS, at_most("MaxFL (log loss)", _FROM_AVERAGE.key, 1e-6), inclusive=True),
            Claim("at gamma_G^2 = 20 MaxFL appeals to more clients than FedAvg", ahead("MaxFL", "FedAvg", "at-20")),
        ),
        figure=figure_4,
        notes=_NOTES
        + """\
- ReLU gives FedAvg by construction, so that is no claim: no gap of this example is below 0. The log loss is lemma
  A.2's case: the weights differ on the way, the solution may not. Lemma A.1's bound says nothing up to gamma_G^2 =
  3.4, where it is above 1.
- The estimates of the picture's (b), 0.5 and 3 to either side of 0, are ours.
""",
        compute=mean.two_clients,
    ),
    Experiment(
        name="maxfl-figure5",
        title="MaxFL: three clients estimate a mean",
        source="MaxFL, figure 5",
        claim="Among clients that are all alike MaxFL's solution is the average; among clients that are all "
        "different it is one client's own model, so that at least one client is satisfied; where two are alike it "
        "is their average, and satisfies both.",
        settings={"draws": 10_000, "gamma": 1.0},
        arms=tuple(
            Arm(f"{name}, {_NAMES[case]}", {"objective": _OBJECTIVES[name], **settings}, {}, case, label=name)
            for case, settings in CASES.items()
            for name in ("FedAvg", "MaxFL")
        ),
        measures=(Measure("gm-appeal", "GM-Appeal", last("gm_appeal"), digits=3), _ONE, _PAIR, _AS_SAID),
        quick=Quick({"draws": 500}),
        claims=(
            _solution("all alike: MaxFL's solution is FedAvg's", "MaxFL, all alike"),
            _solution("all alike, more samples: MaxFL's solution is FedAvg's", "MaxFL, all alike, more samples"),
            _solution("all different: MaxFL's solution is one client's own", "MaxFL, all different"),
            _mostly("all different: MaxFL satisfies at least one client", "MaxFL, all different", _ONE),
            _more("all different"),
            _solution("two alike: MaxFL's solution is the average of clients 1 and 2", "MaxFL, two alike"),
            _mostly("two alike: MaxFL satisfies clients 1 and 2", "MaxFL, two alike", _PAIR),
            _mostly("two alike: MaxFL satisfies at least one client", "MaxFL, two alike", _ONE),
            Claim(_NONE, at_most("FedAvg, two alike", _ONE.key, 1 - _NEARLY), inclusive=True),
            _more("two alike"),
        ),
        figure=figure_5,
        notes=_NOTES
        + f"""\
- The true means and the picture's estimates are ours. A solution within {mean.SAME} standard deviations of what the
  paper says (the average; one client's estimate; that of clients 1 and 2) counts as it.
- In case 1 noise of variance 1 often puts the estimates so far apart that the objective has several minima; the
  further group has a hundred times the samples.
- Far apart, MaxFL serves one client, and the pull towards the others is towards the truth in half of the draws.
  Where two are alike, their average satisfies both only where their estimates lie on different sides of the truth.
""",
        compute=mean.three_clients,
    ),
)
