"""How far the clock is off, asked of a SuperLink's rule: passed if it is -5 s to 305 s behind the server's time."""

import random
from collections.abc import Sequence

import pytest

from client.fleet.activation import Passes, describe, seconds_ahead


def server(ahead: float, asked: list[int]) -> Passes:
    """What a SuperLink does for a client whose clock is ahead by so much."""

    def passes(shifts: Sequence[float]) -> list[bool]:
        asked.append(len(shifts))
        return [-5 < -(ahead + shift) < 305 for shift in shifts]

    return passes


@pytest.mark.parametrize("ahead", [5.5, 6, -305.5, 299, 300, 301, -599, 3600, -7200, 14 * 3600, -14 * 3600 - 59])
def test_the_difference_is_found_to_half_a_second(ahead: float) -> None:
    found = seconds_ahead(server(ahead, []))
    assert found is not None
    assert abs(found - ahead) <= 0.5


def test_any_difference_is_found_with_few_calls_where_it_is_small() -> None:
    draw = random.Random(0)
    for _ in range(200):
        asked: list[int] = []
        ahead = draw.uniform(-1800, 1800)
        found = seconds_ahead(server(ahead, asked))
        assert found is not None
        assert abs(found - ahead) <= 0.5
        assert sum(asked) <= 16 + 10


def test_a_clock_of_another_day_is_not_found() -> None:
    asked: list[int] = []
    assert seconds_ahead(server(90000, asked)) is None
    assert sum(asked) == 2 * 15 * 12 + 1


def test_the_line_says_which_way() -> None:
    assert describe(6.3, "host:1").startswith("this machine's clock is 6 s ahead of the SuperLink at host:1")
    assert "400 s behind the SuperLink" in describe(-400.2, "host:1")
    assert "7200 s (2.0 hours) ahead of" in describe(7200, "host:1")
    assert "more than 15 hours away" in describe(None, "host:1")
