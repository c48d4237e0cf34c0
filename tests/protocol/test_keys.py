"""Which texts may be keys of runs."""

import pytest

from fedappeal.protocol import keys


@pytest.mark.parametrize(
    ("text", "valid"),
    [("", True), (64 * "x", True), ("a-b_c.9", True), (65 * "x", False), ("../a", False), ("a\n", False)],
)
def test_a_run_key_is_up_to_64_plain_characters(text: str, valid: bool) -> None:
    assert keys.is_run_key(text) is valid


def test_a_text_that_is_too_long_is_not_remembered() -> None:
    keys._match_run_key.cache_clear()
    assert not keys.is_run_key(10**6 * "x")
    assert keys._match_run_key.cache_info().currsize == 0
