"""Measures of runs whose clients are free to go: who is still there, and what it took to reach a figure."""

from collections.abc import Callable, Mapping
from statistics import fmean

from fedappeal.views.comparison.measures import LATE, Lines


def stayed(clients: int = 0) -> Callable[[Lines], float | None]:
    """Return a reading: the share of clients that did not leave for good.

    Args:
        clients: their number; 0: the most that a round asked, where every client that has not left is asked.
    """

    def of(lines: Lines) -> float | None:
        number = clients or max((line["asked"] for line in lines), default=0)
        return 1.0 - sum(line.get("left", 0) for line in lines) / number if number else None

    return of


def continued(lines: Lines, rounds: int) -> Lines:
    """Return a run's lines up to a round: a run that ended before has its last one again.

    Args:
        lines: of the history.
        rounds: the number that was planned.
    """
    if not lines:
        return lines
    last = lines[-1]
    return [*lines, *({**last, "round": number} for number in range(int(last["round"]) + 1, rounds + 1))]


def kept(clients: int, rounds: int = LATE) -> Callable[[Lines], float | None]:
    """Return a reading: the share of all clients that joined, on the average of a run's last rounds.

    Other than `measures.joined_share` its share is of all clients, also those that have left and are not asked any
    more; and clients that joined count whether or not the server took them in.

    Args:
        clients: their number.
        rounds: number of the run's last rounds that count.
    """

    def of(lines: Lines) -> float | None:
        return fmean(_sent(line) / clients for line in lines[-rounds:]) if lines else None

    return of


def _sent(line: Mapping[str, int]) -> int:
    """Return how many clients joined, with those whose updates FedALIGN refused, or came after enough others."""
    return line["joined"] + line.get("refused", 0) + line.get("surplus", 0)


def rounds_to(column: str, target: float, higher_is_better: bool = True) -> Callable[[Lines], float | None]:
    """Return a reading: the first evaluated round in which a column of the history reached a target."""

    def of(lines: Lines) -> float | None:
        for line in lines:
            value = line.get(column)
            if value is not None and (value >= target if higher_is_better else value <= target):
                return float(line["round"])
        return None

    return of


def megabytes_to(column: str, target: float, higher_is_better: bool = True) -> Callable[[Lines], float | None]:
    """Return a reading: megabytes of training, up and down, until a column of the history reached a target."""
    reached = rounds_to(column, target, higher_is_better)

    def of(lines: Lines) -> float | None:
        rounds, found = reached(lines), training_megabytes(lines)
        return sum(found[: int(rounds)]) if rounds is not None and found else None

    return of


def training_megabytes(lines: Lines) -> list[float]:
    """Return the megabytes of each round's training, up and down.

    A round that was also evaluated counts as the last one without an evaluation, or else as the next one.
    """
    own = [
        None if line.get("expected") else (line["bytes_up"] + line["bytes_down"]) / 1e6 if line["asked"] else 0.0
        for line in lines
    ]
    latest = next((value for value in own if value is not None), None)
    if latest is None:
        return []
    found: list[float] = []
    for value in own:
        latest = latest if value is None else value
        found.append(latest)
    return found
