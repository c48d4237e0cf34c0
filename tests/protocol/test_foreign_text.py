"""Texts that another party wrote: deep JSON, control characters, length."""

import pytest

from fedappeal.protocol.foreign_text import all_printable, one_line, parse_json, printable


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "{", "9" * 5_000, b"\xff"])
def test_json_that_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_what_may_be_printed() -> None:
    assert printable("plain ü [bold]x[/]") == "plain ü [bold]x[/]"
    assert printable("a\x1b[31mb\nc\x07\u202ed") == "a?[31mb?c??d"
    assert printable("x" * 600) == "x" * 497 + "..."
    assert printable(12345, 4) == "1..."
    assert all_printable({"a\x1b": ["b\x07", 1, None, {"c": "\x9b"}]}) == {"a?": ["b?", 1, None, {"c": "?"}]}


def test_one_line_of_what_has_many() -> None:
    assert one_line("a\r\n  b\tc\x07") == "a b c?"
    assert one_line("ab " * 1000, 10) == "ab ab a..."
