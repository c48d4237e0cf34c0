"""Settings of ADA-GD's experiments on images: their task, and what is read off a run."""

from collections.abc import Callable, Mapping
from typing import Any

from fedappeal.studies.pictures import Reading, recorded
from fedappeal.views.comparison import measures

CONSIDERABLE = 5
"""Points of accuracy that count as a considerable loss; the paper uses the word and gives no number."""


TASK = "fedappeal.reproductions.adagd.task:KeptShare"


def kept_share(classes: str, keep: float, examples: int, data: str = "fmnist") -> Mapping[str, Any]:
    """Return the settings of the experiments' task.

    Args:
        classes: the classes that occur, by commas: ``"5,9"``.
        keep: q, the share of its own pool that an agent keeps.
        examples: examples an agent, train and test together.
        data: ``fmnist`` or ``cifar10``.
    """
    settings = {"data": data, "classes": classes, "keep": keep, "examples": examples}
    return {"task": TASK, **{f"kept-share.{key}": value for key, value in settings.items()}}


def defections(lines: measures.Lines) -> list[int]:
    """Return the round of each agent's defection, ascending."""
    return [int(line["round"]) for line in lines for _ in range(int(line["left"]))]


DEFECTIONS = ("an agent leaves", defections)


@measures.reading
def before_any_left(lines: measures.Lines, reading: Reading) -> float | None:
    """Return the last value recorded before the round in which the first agent leaves.

    An agent leaves on receiving the model, so the model it leaves with is that of the round before. None where no
    agent leaves, or where nothing was recorded before.
    """
    if not (left := defections(lines)):
        return None
    return next((value for at, value in reversed(recorded(lines, reading).items()) if at < left[0]), None)


def _first_defection(lines: measures.Lines) -> float | None:
    return next(iter(defections(lines)), None)


def _below_best(lines: measures.Lines) -> float | None:
    end, highest = measures.last("accuracy")(lines), measures.best("accuracy")(lines)
    return None if end is None or highest is None else highest - end


def population(line: measures.Line) -> float | None:
    """Return the accuracy over the whole population, sampled or not; all agents hold equally many examples."""
    if line.get("accuracy") is None or line.get("unseen_accuracy") is None:
        return None
    return (float(line["accuracy"]) + float(line["unseen_accuracy"])) / 2


@measures.reading
def over_population(lines: measures.Lines, chosen: Callable[[list[float]], float]) -> float | None:
    """Return one of the population's accuracies over the rounds."""
    values = list(recorded(lines, population).values())
    return chosen(values) if values else None


AGENTS_LOST = measures.Measure("agents-lost", "agents lost", measures.total("left"), better="lower", digits=1)
FIRST_DEFECTION = measures.Measure("first-defection", "first leaves in round", _first_defection, better="", digits=0)
ROUNDS = measures.Measure("rounds", "rounds run", measures.last("round"), better="", digits=0)
END_ACCURACY = measures.Measure("accuracy", "accuracy % at the end", measures.last("accuracy"), percent=True)
PEAK_ACCURACY = measures.Measure("peak", "accuracy % at its highest", measures.best("accuracy"), percent=True)
BELOW_PEAK = measures.Measure(
    "below-peak", "points below its highest at the end", _below_best, percent=True, better="lower"
)
POPULATION = measures.Measure(
    "population", "population: accuracy % at the end", over_population(lambda v: v[-1]), percent=True
)
LOWEST = measures.Measure("lowest", "lowest agent's", measures.last("lowest_accuracy"), percent=True)
HIGHEST = measures.Measure("highest", "highest agent's", measures.last("highest_accuracy"), percent=True)
