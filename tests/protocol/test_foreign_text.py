"""Texts that another party wrote: deep JSON, control characters, length."""

import html
import re

import pytest
from markdown_it import MarkdownIt

from fedappeal.protocol.foreign_text import all_printable, as_cell, as_markdown, one_line, parse_json, printable


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


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "=1"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    assert as_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["a=1", "", "-0.5", "+1e-7", "-inf", -0.5, None, 3, "'=1"])
def test_numbers_and_other_texts_stay_cells(value: object) -> None:
    assert as_cell(value) is value


@pytest.mark.parametrize(
    "text",
    [
        "[a](http://x)",
        "![a](http://x)",
        "<b>",
        "<http://x>",
        "http://x.org",
        "www.x.org",
        "`a`",
        "*a*",
        "_a_",
        "~~a~~",
        "&lt;",
        "\\[a](b)",
        "a_b*c",
        "plain: text, 1.5 % - x",
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    parser = MarkdownIt("commonmark").enable("strikethrough")
    assert html.unescape(parser.renderInline(as_markdown(text))) == text
    assert "<" not in parser.renderInline(as_markdown(text))
    assert not re.search(r"(?<!\\)://|www\.", as_markdown(text)), "some parsers make links of bare addresses"
