"""MaxFL, theorem 3.1: the squared gradient norm of the objective against the number of rounds T."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedappeal.reproductions.maxfl.logistic import LIPSCHITZ, SMOOTHNESS, draw_clients, squared_gradients
from fedappeal.studies.experiment import Arm, Claim, Experiment, Quick, Results, at_least, at_most
from fedappeal.views.comparison.figures import COLOURS, new_figure, save
from fedappeal.views.comparison.measures import Lines, Measure, last
from fedappeal.views.comparison.statistics import t_quantile
from strategies.maxfl import theorem_step_sizes

EXPONENT = -0.5
"""Of T in the theorem's bound, in the terms that fall the slowest."""

_RUNS = 8
_ROUNDS = (512, 1024, 2048, 4096, 8192)


def least_rounds(clients: int, local_steps: int) -> int:
    """Return the least T of the proof's condition ``eta_g eta_l <= 1 / (9 tau (L_s + L_c / 4))``, for m clients."""
    return math.ceil(81 * clients * local_steps * (SMOOTHNESS + LIPSCHITZ / 4) ** 2)


def log_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the least-squares slope of ln y on ln x, at least three points, and half of its 95 % interval."""
    a, b = np.log(x), np.log(y)
    a -= a.mean()
    slope = float(a @ b / (a @ a))
    residual = b - b.mean() - slope * a
    degrees = len(a) - 2
    return slope, t_quantile(degrees) * math.sqrt(float(residual @ residual) / degrees / float(a @ a))


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return least and average squared gradient norm for each T of one row, and their slopes."""
    tau, chosen = settings["local-steps"], settings["chosen"]
    clients = draw_clients(settings["clients"], settings["examples"], settings["size"], settings["spread"], seed)
    least, average = list[float](), list[float]()
    for rounds in settings["rounds"]:
        sizes = theorem_step_sizes(rounds, tau, chosen)
        found = squared_gradients(clients, sizes, rounds, tau, chosen, settings["batch"], settings["runs"], seed)
        least.append(float(found.min()))
        average.append(float(found.mean()))
    slope, half = log_slope(settings["rounds"], least)
    average_slope, average_half = log_slope(settings["rounds"], average)
    return {
        "rounds": list(settings["rounds"]),
        "least": least,
        "average": average,
        "slope": slope,
        "half": half,
        "average_slope": average_slope,
        "average_half": average_half,
        "falls": float(min(-np.diff(np.log(least)) / np.diff(np.log(settings["rounds"])))),
    }


def _figure(results: Results, stem: Path) -> None:
    """Draw least and average against T, a line a row, with a line of the theorem's slope."""
    figure = new_figure(10.5, 4.2)
    panels = figure.subplots(1, 2)
    titles = ("(a) least of the T rounds (theorem 3.1)", "(b) average of the T rounds (its proof)")
    for axes, key, title in zip(panels, ("least", "average"), titles, strict=True):
        tops = list[float]()
        for place, arm in enumerate(results.arms):
            runs = results.of(arm.name)
            rounds = runs[0].lines[0]["rounds"]
            values = np.array([run.lines[0][key] for run in runs])
            axes.plot(rounds, values.T, color=COLOURS[place], alpha=0.3, linewidth=0.8)
            means = np.exp(np.log(values).mean(axis=0))
            axes.plot(rounds, means, "o-", color=COLOURS[place], label=arm.name)
            tops.append(float(means[0]))
        t = np.array(sorted({rounds for arm in results.arms for rounds in arm.settings["rounds"]}))
        guide = 1.6 * max(tops) * (t / t[0]) ** EXPONENT
        axes.plot(t, guide, "--", color="black", label="slope -1/2, at a height of our choice")
        axes.set(title=title, xlabel="rounds T", xscale="log", yscale="log")
        axes.set_xticks(t, [str(n) for n in t])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("squared gradient norm of the objective")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    save(figure, stem)


def _row(name: str, local_steps: int, chosen: int) -> Arm:
    rounds = [rounds for rounds in _ROUNDS if rounds >= least_rounds(chosen, local_steps)]
    return Arm(name, {"local-steps": local_steps, "chosen": chosen, "rounds": rounds})


_ARMS = (
    _row("tau = 5, m = 5 of 20", 5, 5),
    _row("tau = 1, m = 5 of 20", 1, 5),
    _row("tau = 5, all 20 clients", 5, 20),
)


def _claims(arm: str) -> tuple[Claim, ...]:
    return (
        Claim(
            f"{arm}: the least squared gradient norm falls with T at least as fast as T^(-1/2) (slope at most -0.5)",
            at_most(arm, "slope", EXPONENT),
            inclusive=True,
        ),
        Claim(
            f"{arm}: so does the average over the rounds, which is what the proof bounds",
            at_most(arm, "average-slope", EXPONENT),
            inclusive=True,
        ),
        Claim(
            f"{arm}: with more rounds the model gets nearer to a stationary point (the least falls with each "
            "doubling of T)",
            at_least(arm, "falls", 0.0),
        ),
    )


def _end(lines: Lines) -> float:
    """Return by what power of T the average fell at the largest T."""
    before, after = lines[0]["average"][-2:]
    return math.log2(before / after)


def _least_at(rounds: int) -> Measure:
    def of(lines: Lines) -> float | None:
        found = dict(zip(lines[0]["rounds"], lines[0]["least"], strict=True))
        return math.log10(found[rounds]) if rounds in found else None

    return Measure(f"least-{rounds}", f"log10 of the least, T = {rounds}", of, better="lower")


_LEAST, _AVERAGE = "least squared gradient norm", "average squared gradient norm"

EXPERIMENTS = (
    Experiment(
        name="maxfl-theorem31",
        title="MaxFL: the gradient of its objective against the number of rounds",
        source="MaxFL, theorem 3.1",
        claim="With the theorem's step sizes the least squared gradient norm of the objective over T rounds is "
        "bounded by a constant times T^(-1/2), for a sufficiently large T.",
        settings={"clients": 20, "examples": 40, "size": 2, "spread": 0.5, "batch": 1, "runs": _RUNS},
        arms=_ARMS,
        measures=(
            Measure("slope", f"slope of ln({_LEAST}) on ln(T)", last("slope"), better=""),
            Measure("half", "half of its 95 % interval", last("half"), better=""),
            Measure("average-slope", f"slope of ln({_AVERAGE}) on ln(T)", last("average_slope"), better=""),
            Measure("average-half", "half of its interval", last("average_half"), better=""),
            Measure("falls", "the slowest fall of the least, from T to 2 T, as an exponent", last("falls")),
            Measure("average-end", "fall of the average from half the largest T to it, as an exponent", _end),
            *map(_least_at, _ROUNDS),
        ),
        quick=Quick({"rounds": [16, 32, 64], "runs": 2}),
        claims=tuple(claim for arm in _ARMS for claim in _claims(arm.name)),
        figure=_figure,
        notes=f"""\
- Task: logistic regression with examples of norm at most 1, so that L_c = {LIPSCHITZ:g} and L_s = {SMOOTHNESS:g}
  (assumption 3.1), and the gradient of equation 3's objective is computed exactly, over all clients and examples.
  Batches of one example, drawn with replacement; rho_k is the loss after 100 full gradient steps alone. A seed draws
  data and batches. Every client that is picked takes part: the theorem has no opt-out.
- Step sizes, those of `maxfl.step-sizes = theorem-3.1`: eta_l = 1 / (sqrt(T) tau), eta_g = sqrt(tau m), epsilon = m.
  The theorem's epsilon is any positive constant: m is that of its proof for partial participation (appendix B.3), and
  is taken where all clients take part, too. Its O hides all other constants, the start's height, sigma_g, kappa and
  beta among them: nothing is said of them here, and the height of the dashed line is ours.
- "Sufficiently large": of the proof's two conditions eta_g eta_l <= 1 / (9 tau (L_s + L_c / 4)) gives T of at least
  {", ".join(f"{least_rounds(arm.settings['chosen'], arm.settings['local-steps'])} ({arm.name})" for arm in _ARMS)};
  only such T are run. The other, eta_l <= 1 / (4 beta' tau L_s), has a beta' that is not known, and is not checked.
- The least is that of E: of the mean over {_RUNS} repetitions before each of the T rounds, the start among them.
- A bound may be loose: a slope below -1/2 agrees with it and does not show that it is tight, and a few T cannot show
  what holds for all larger ones. Nor does a slope tell apart the terms of the bound, whose exponents are -1/2 and -1.
- Models of size 2 and batches of one were chosen after trials with seed 0, in which a model of size 5 and batches of
  four gave an exponent of -1.4 from T = 512 to 8192 (tau = 5, m = 5): there the runs are longer on their way.
  The average, its slope and the claims about it were added after those trials, and before the full run.
- The claims are our reading: the theorem bounds a height, not a slope. Where the average falls more slowly than
  T^(-1/2), that does not contradict it: at the smaller T most rounds are spent on the way, where no bound is tight.
  The column of its last doubling says what it has come to at the largest T.
- A slope's own interval is that of one seed's fit; the verdict's is over seeds. Where points bend away
  from a line, the fit's interval is wide.
""",
        compute=compute,
    ),
)
