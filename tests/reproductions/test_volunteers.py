"""What the volunteers' table counts, against numbers worked out by hand."""

import pytest

from fedappeal.reproductions import load_experiment

COLUMNS = {measure.key: measure for measure in load_experiment("volunteers").measures}


def line(server_round: int, megabytes: float, accuracy: float | None = None, asked: int = 4) -> dict[str, object]:
    """A round whose training took a number of MB, 3 parts up and 1 down; an evaluation takes 1000 more."""
    measured = {"accuracy": accuracy, "expected": 6, "evaluated": 6} if accuracy is not None else {}
    up, down = 0.75e6 * megabytes, 0.25e6 * megabytes + 1e9 * bool(measured)
    return {"round": server_round, "asked": asked, "left": 0, "bytes_up": up, "bytes_down": down, **measured}


def test_megabytes_are_added_up_to_the_round_that_reached_it() -> None:
    lines = [line(1, 8), line(2, 5, accuracy=0.3), line(3, 2), line(4, 1, accuracy=0.6), line(5, 1)]
    assert COLUMNS["rounds-to"].number(lines) == 4
    assert COLUMNS["megabytes-to"].number(lines) == pytest.approx(8 + 8 + 2 + 2)  # rounds 2 and 4 as those before
    assert COLUMNS["megabytes"].number(lines) == pytest.approx((8 + 8 + 2 + 2 + 1) / 5)


def test_rounds_that_asked_no_client_took_nothing() -> None:
    lines = [line(1, 6, accuracy=0.1), line(2, 6), line(3, 0, asked=0), line(4, 0, accuracy=0.5, asked=0)]
    assert COLUMNS["megabytes-to"].number(lines) == pytest.approx(6 + 6)
    assert COLUMNS["megabytes"].number(lines) == pytest.approx(6)


def test_what_was_never_reached_has_no_cost() -> None:
    lines = [line(1, 6), line(2, 6, accuracy=0.4)]
    assert COLUMNS["rounds-to"].number(lines) is None
    assert COLUMNS["megabytes-to"].number(lines) is None
    assert COLUMNS["megabytes"].number([line(1, 6, accuracy=0.4)]) is None
    assert COLUMNS["megabytes"].number([]) is None


def test_refused_updates_joined_and_were_not_taken_in() -> None:
    lines = [{**line(1, 1), "joined": 2, "refused": 2}, {**line(2, 1), "joined": 3}]
    assert COLUMNS["joined-late"].number(lines) == pytest.approx(100 * 5 / 8)
    assert COLUMNS["sent-late"].number(lines) == pytest.approx(100 * 7 / 8)
