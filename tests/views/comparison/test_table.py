"""A table of texts, in Markdown and on a terminal that is as wide as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedappeal.views.comparison.table import TextTable, plain_number


def shown(table: TextTable, width: int) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        for part in table.rich(width):
            console.print(part)
    return captured.get().splitlines()


def test_a_table_in_markdown() -> None:
    table = TextTable("t", ("", "a|b"), (("group",), ("row", "1")))
    assert table.markdown() == "|  | a\\|b |\n| --- | ---: |\n| **group** |  |\n| row | 1 |"


def test_columns_that_do_not_fit_stand_in_a_table_below() -> None:
    wide = TextTable("w", ("", *"abcdefgh"), (("row", *"12345678"), ("group",), ("row", *"12345678")))
    # 1 + (3 + 3) for the names, 3 + 1 a column: six fit in 31 characters, and five in 30
    assert [(part.title, len(part.columns)) for part in wide.rich(31)] == [
        ("w", 7),
        ("w", 3),
        ("w: group", 7),
        ("w: group", 3),
    ]
    assert [len(part.columns) for part in wide.rich(30)] == [6, 4, 6, 4]
    assert [len(part.columns) for part in wide.rich()] == [9, 9]


def test_no_cell_is_cut_short() -> None:
    table = TextTable(
        "t", ("", "a long heading of words", "x" * 100), (("a name of many words indeed", "1 ± 2", "3"),)
    )
    text = "".join("".join(shown(table, 80)).split())
    for letters in ("x" * 5, "1±2"):
        assert letters in text
    assert text.count("x") == 100
    assert "[bold]" in "".join(shown(TextTable("[bold]", ("", "[b]"), (("[c]", "[/d]"),)), 80))


WORDS = st.text("abc =.±[]", max_size=120)


@given(st.integers(2, 7).flatmap(lambda n: st.lists(st.tuples(*[WORDS] * n), min_size=2, max_size=4)), WORDS)
def test_no_line_is_longer_than_the_terminal(rows: list[tuple[str, ...]], title: str) -> None:
    header, *body = rows
    for width in (80, 120):
        assert max(map(len, shown(TextTable(title, header, tuple(body)), width))) <= width


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [
        (-0.001, 1, "", "0.0"),
        (-0.001, 1, "+", "+0.0"),
        (-0.06, 1, "", "-0.1"),
        (0.0, 2, "+", "+0.00"),
        (3.14159, 2, "+", "+3.14"),
    ],
)
def test_numbers(value: float, digits: int, sign: str, text: str) -> None:
    assert plain_number(value, digits, sign) == text
