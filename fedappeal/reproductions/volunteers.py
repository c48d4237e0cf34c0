"""Our own comparison: what is read off its runs."""

from statistics import fmean

from fedappeal.views.comparison.measures import LATE, Lines, reading, training_megabytes


@reading
def megabytes_a_round(lines: Lines) -> float | None:
    """Return the mean training megabytes of the rounds that asked a client."""
    sizes = [megabytes for megabytes, line in zip(training_megabytes(lines), lines, strict=False) if line["asked"]]
    return fmean(sizes) if sizes else None


@reading
def sent(lines: Lines) -> float | None:
    """Return the share that sent an update of the clients asked in the last rounds.

    A history counts the clients whose updates FedALIGN refuses by themselves.
    """
    chosen = lines[-LATE:]
    asked = sum(int(line["asked"]) for line in chosen)
    return sum(int(line["joined"]) + int(line.get("refused", 0)) for line in chosen) / asked if asked else None
