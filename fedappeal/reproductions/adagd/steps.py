"""ADA-GD, figure 7b: ADA-GD and local SGD, each with the largest step that loses no agent."""

from collections.abc import Callable
from functools import cache
from statistics import fmean

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.adagd.precision import by_setting
from fedappeal.reproductions.adagd.readings import DEFECTIONS, keeps_and_moves
from fedappeal.studies.experiment import Missing, Numbers, Results, RunResult, Unmeasured
from fedappeal.studies.pictures import over_rounds
from fedappeal.views.comparison.measures import COLOURS, Figure, new_panels

LOCAL = "local-sgd"
ALGORITHMS = {LOCAL: "Local SGD", "ada-gd": "ADA-GD", "ada-gd-slack-1": "ADA-GD, slack 1"}

TENFOLD = 10.0
"""The paper's ADA-GD takes steps ten times as long as its local SGD."""

Choice = Callable[[Numbers, str], float]
"""Chooses a step of the sweep for an algorithm."""


@cache
def sweep(algorithm: str) -> dict[float, str]:
    """Return the rows of an algorithm's sweep by their steps, ascending."""
    rows = [arm.name for arm in load_experiment("adagd-figure7b").arms if arm.shown.startswith("eta ")]
    parts = {row: row.partition("-eta-") for row in rows}
    return {float(eta): row for row, (name, _, eta) in parts.items() if name == algorithm}


def largest(number: Numbers, algorithm: str) -> float:
    """Return the sweep's largest step that keeps all agents and moves the model.

    Raises:
        Unmeasured: there is none; then no step can be compared with it.
    """
    steps = [eta for eta, row in sweep(algorithm).items() if keeps_and_moves(number, row) >= 0]
    if not steps:
        raise Unmeasured(f"a step with which {algorithm} keeps all agents")
    return max(steps)


def tenfold(number: Numbers, algorithm: str) -> float:
    """Return the step ten times local SGD's largest; its own for local SGD.

    Raises:
        Unmeasured: the sweep has none, or local SGD has no largest step.
    """
    if algorithm == LOCAL:
        return largest(number, LOCAL)
    wanted = TENFOLD * largest(number, LOCAL)
    nearest = min(sweep(algorithm), key=lambda eta: abs(eta - wanted))
    if abs(nearest - wanted) > 0.01 * wanted:
        raise Unmeasured(f"{algorithm} with eta {wanted:g}")
    return nearest


def largest_tenfold(number: Numbers, algorithm: str) -> float:
    """Return how far an algorithm's largest step exceeds ten times local SGD's.

    In units of local SGD's.
    """
    least = largest(number, LOCAL)
    try:
        return largest(number, algorithm) / least - 0.99 * TENFOLD
    except Unmeasured:  # it has no such step
        return -0.99 * TENFOLD


def better(number: Numbers, algorithm: str, choose: Choice) -> float:
    """Return an algorithm's gain in accuracy over local SGD with its largest step.

    The algorithm has a chosen step.
    """
    accuracy = number(sweep(algorithm)[choose(number, algorithm)], "accuracy")
    return accuracy - number(sweep(LOCAL)[largest(number, LOCAL)], "accuracy")


def runs_with_step(results: Results, algorithm: str, choose: Choice) -> list[RunResult]:
    """Return each seed's run of an algorithm with that seed's chosen step size.

    A seed without such a step has none.
    """
    runs = []
    for seed in sorted({run.seed for run in results.runs}):
        try:
            eta = choose(results.of_seed(seed), algorithm)
        except (Missing, Unmeasured):  # the short form has not all rows
            continue
        runs += [run for run in results.of(sweep(algorithm)[eta]) if run.seed == seed]
    return runs


def figure(results: Results) -> Figure:
    """Draw the accuracy over the rounds for two chosen steps, and all final accuracies."""
    picture, ((*over_both, right),) = new_panels(14.7, 4.3, 1, 3)
    order = list(ALGORITHMS.values())
    choices: tuple[tuple[str, Choice], ...] = (
        ("each with its own largest step that loses no agent", largest),
        (f"ADA-GD with {TENFOLD:g} times local SGD's largest step", tenfold),
    )
    for axes, (title, choose) in zip(over_both, choices, strict=True):
        runs_of = {name: runs_with_step(results, algorithm, choose) for algorithm, name in ALGORITHMS.items()}
        over_rounds(axes, ("accuracy", "test accuracy %, both agents", True), runs_of, order, DEFECTIONS, "log")
        axes.set_title(title, loc="left", fontsize=10)
        axes.legend(fontsize=8)
    for (algorithm, name), colour in zip(ALGORITHMS.items(), COLOURS, strict=False):
        rows = {eta: row for eta, row in sweep(algorithm).items() if results.of(row)}
        by_setting(right, results, rows, "accuracy", colour, name)
        left, accuracy = map(results.experiment.measure, ("agents-lost", "accuracy"))
        lost = [eta for eta, row in rows.items() if any(results.numbers(row, left))]
        ends = [fmean(results.numbers(rows[eta], accuracy)) for eta in lost]
        right.plot(lost, ends, "kx", markersize=11)
    right.set(xlabel="step size eta", ylabel="test accuracy % at the end", xscale="log")
    right.set_title("all steps; crossed out: an agent leaves, in some seed", loc="left", fontsize=10)
    right.legend(fontsize=8, title="mean; dots: seeds", title_fontsize=8)
    return picture
