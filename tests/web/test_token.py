"""The secret of a page is long, and another each time."""

from fedappeal.web.access import new_token


def test_tokens_are_long_and_differ() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= 43
