"""A number with its noun."""

from fedappeal.system.wording import plural


def test_one_alone_has_no_plural() -> None:
    assert [plural(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
