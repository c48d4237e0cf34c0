"""Container tests by turns: none is left out for good, and a touched one never."""

import pytest

from tests.docker.turns import TURNS, of_turn

TESTS = [f"tests/docker/test_{file}.py::test_{k}" for file, count in (("one", 4), ("two", 3)) for k in range(count)]


def test_each_runs_once_in_three_turns_whichever_is_the_first() -> None:
    for first in range(5):
        turns = [of_turn(TESTS, [], first + k) for k in range(TURNS)]
        assert sorted(test for turn in turns for test in turn) == sorted(TESTS)
        assert {len(turn) for turn in turns} <= {2, 3}


@pytest.mark.parametrize("number", range(TURNS))
def test_what_a_change_touches_runs_in_each(number: int) -> None:
    turn = of_turn(TESTS, ["README.md", "tests/docker/test_two.py"], number)
    assert turn[-3:] == TESTS[-3:]
    assert 1 <= len(turn[:-3]) <= 2
    for file in ("docker-compose.yml", "docker/Dockerfile", "tests/docker/federation.py"):
        assert of_turn(TESTS, [file], number) == TESTS
