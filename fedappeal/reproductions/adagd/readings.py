"""What is read off runs that agents leave, and margins of the claims about them."""

from fedappeal.studies.experiment import Numbers
from fedappeal.views.comparison.measures import Line, Lines, LineValue, best, last, reading, recorded

CONSIDERABLE = 5
"""Points of accuracy that count as a considerable loss; the paper uses the word and gives no number."""


def defections(lines: Lines) -> list[int]:
    """Return the round of each agent's defection, ascending."""
    return [int(line["round"]) for line in lines for _ in range(int(line["left"]))]


DEFECTIONS = ("an agent leaves", defections)


def population(line: Line) -> float | None:
    """Return the accuracy over the whole population, sampled or not.

    All agents hold equally many examples.
    """
    if line.get("accuracy") is None or line.get("unseen_accuracy") is None:
        return None
    return (float(line["accuracy"]) + float(line["unseen_accuracy"])) / 2


@reading
def population_end(lines: Lines) -> float | None:
    """Return the population's last accuracy, also of a run whose later models few could measure."""
    return next(reversed(recorded(lines, population).values()), None)


@reading
def before_any_left(lines: Lines, of: LineValue) -> float | None:
    """Return the last value recorded before the round in which the first agent leaves.

    An agent leaves on receiving the model, so the model it leaves with is that of the round before. None where no
    agent leaves, or where nothing was recorded before.
    """
    if not (left := defections(lines)):
        return None
    return next((value for at, value in reversed(recorded(lines, of).items()) if at < left[0]), None)


@reading
def first_defection(lines: Lines) -> float | None:
    """Return the round in which the first agent leaves."""
    return next(iter(defections(lines)), None)


@reading
def below_best(lines: Lines) -> float | None:
    """Return the final accuracy's distance below the highest."""
    end, highest = last("accuracy")(lines), best("accuracy")(lines)
    return None if end is None or highest is None else highest - end


@reading
def gone_at_peak(lines: Lines) -> float | None:
    """Return the number of agents gone by the round of highest accuracy."""
    if not (values := recorded(lines, "accuracy")):
        return None
    peak = max(values, key=values.__getitem__)
    return float(sum(left <= peak for left in defections(lines)))


@reading
def worse_after(lines: Lines, later: int) -> float | None:
    """Return the share of defections after which accuracy is lower some rounds later.

    A share of the rounds with a defection.

    Compared are the model on which the agent left, that of the round before, and the one ``later`` rounds after it,
    or the run's last. A round after which no agent is left to train says nothing: the model stays. None where no
    defection can be judged; accuracies must have been recorded in every round.
    """
    accuracy, end = recorded(lines, "accuracy"), int(lines[-1]["round"])
    judged = [int(line["round"]) - 1 for line in lines if line["left"] and line["joined"]]
    pairs = [(accuracy.get(at), accuracy.get(min(at + later, end))) for at in judged]
    fell = [after < before for before, after in pairs if before is not None and after is not None]
    return sum(fell) / len(fell) if fell else None


def falls_considerably(number: Numbers, row: str, column: str, reference: str) -> float:
    """Return an accuracy's fall below another, less `CONSIDERABLE` points."""
    return round(number(row, reference) - number(row, column), 6) - CONSIDERABLE


def keeps_and_moves(number: Numbers, row: str) -> float:
    """Return 0 if no agent left and the model moved.

    Else how many left, below 0.

    A run that ends in round 1 returns w_0: that keeps all agents and is worth nothing.
    """
    return min(-number(row, "agents-lost"), number(row, "rounds") - 2)


def decays(number: Numbers, row: str, points: int) -> float:
    """Return a final model's drop below its best, less so many points."""
    return round(number(row, "below-peak"), 6) - points


def improves(number: Numbers, row: str) -> float:
    """Return a final model's gain over its first, if near its best.

    Less than a point worse than its best.
    """
    return min(number(row, "accuracy") - number(row, "start"), 1 - round(number(row, "below-peak"), 6))
