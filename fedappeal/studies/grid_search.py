"""Grid search: every combination of a paper's grid, then the best of each row.

The best is chosen by the experiment's criterion on the seeds that are then reported, as the papers do; so the numbers
are a little better than those of settings chosen beforehand.
"""

import dataclasses
import itertools
from statistics import fmean

from fedappeal.settings.config import ConfigError
from fedappeal.studies.experiment import Arm, Experiment, Quick, Results
from fedappeal.studies.plan import Plan, slug


def grid_keys(experiment: Experiment, wanted: str) -> tuple[str, ...]:
    """Return the settings to search over.

    Args:
        experiment: the experiment.
        wanted: their keys by commas, or ``all``.

    Raises:
        ConfigError: the experiment has no grid, or not over that setting.
    """
    if not experiment.grid or not experiment.criterion:
        raise ConfigError(f"grid = '{wanted}' is not allowed: {experiment.name} has no grid to search")
    if wanted == "all":
        return tuple(experiment.grid)
    keys = tuple(key.strip() for key in wanted.split(","))
    for key in keys:
        if key not in experiment.grid:
            raise ConfigError(f"grid = '{key}' is not allowed: all, {', '.join(experiment.grid)}")
    return keys


def grid_experiment(experiment: Experiment, keys: tuple[str, ...]) -> Experiment:
    """Return the experiment that tries every combination, for the rows of the first group.

    Its rows stand in a group for each row of the experiment.
    """
    arms, short = [], []
    for arm in experiment.arms:
        if arm.group != experiment.arms[0].group:
            continue
        for values in itertools.product(*(experiment.grid[key] for key in keys)):
            chosen = dict(zip(keys, values, strict=True))
            label = ", ".join(f"{key} {value}" for key, value in chosen.items())
            name = f"{arm.name}-{slug(label)}"
            arms.append(Arm(name, {**arm.settings, **chosen}, arm.paper, arm.shown, label=label))
            if not experiment.quick.arms or arm.name in experiment.quick.arms:
                short.append(name)
    quick = {key: value for key, value in experiment.quick.settings.items() if key not in keys}
    return dataclasses.replace(
        experiment,
        name=f"{experiment.name}-grid",
        title=f"{experiment.title}: the grid",
        arms=tuple(arms),
        quick=Quick(settings=quick, arms=tuple(short)),
        claims=(),
        figure=None,
        glances={},
        notes="",
        grid={},
        criterion="",
    )


def best_of_each(experiment: Experiment, plan: Plan, results: Results) -> tuple[Plan, Results]:
    """Return the experiment's plan and results with each row's best settings.

    Args:
        experiment: the experiment that was searched for.
        plan: of its grid.
        results: of its grid.

    Returns:
        A plan and results with the rows of the first group, under their own names.

    Raises:
        ConfigError: a row has no finished run with a number.
    """
    measure = experiment.measure(experiment.criterion)
    chosen: dict[str, Arm] = {}
    for row in dict.fromkeys(run.arm.group for run in plan.runs):
        numbers_of = {arm.name: results.numbers(arm.name, measure) for arm in results.arms if arm.group == row}
        most = max(map(len, numbers_of.values()), default=0)
        if not most:
            raise ConfigError(f"{experiment.name}: no run of {row} was finished with a number, so none is the best")
        # Settings with which a seed diverged or failed are not the best, whatever the other seeds came to.
        means = {name: fmean(numbers) for name, numbers in numbers_of.items() if len(numbers) == most}
        pick = min if measure.better == "lower" else max
        winner = pick(means, key=lambda name: means[name])
        (best,) = (arm for arm in results.arms if arm.name == winner)
        (base,) = (arm for arm in experiment.arms if arm.shown == row and arm.group == experiment.arms[0].group)
        chosen[winner] = dataclasses.replace(base, settings=best.settings, label=f"{row} ({best.label})", runs_in="")
    tuned = dataclasses.replace(
        experiment,
        name=f"{experiment.name}-tuned",
        title=f"{experiment.title}, each row with its best settings",
        arms=tuple(chosen.values()),
        glances={},
        quick=Quick(),
        notes=f"{experiment.notes}- The best by {measure.title}, on the seeds that are reported.\n",
    )
    runs = tuple(dataclasses.replace(run, arm=chosen[run.arm.name]) for run in plan.runs if run.arm.name in chosen)
    finished = tuple(dataclasses.replace(r, arm=chosen[r.arm.name]) for r in results.runs if r.arm.name in chosen)
    return dataclasses.replace(plan, experiment=tuned, runs=runs, skipped={}), Results(tuned, finished)
