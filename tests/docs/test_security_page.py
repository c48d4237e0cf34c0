"""The page on security: the tests that it names are there; each hostile test begins with its promise."""

import re

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "security.md").read_text()
HOSTILE = sorted(path.name for path in (ROOT / "tests" / "hostile").glob("test_*.py"))


def test_each_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", HOSTILE)
def test_each_hostile_test_begins_with_its_promise(name: str) -> None:
    assert (ROOT / "tests" / "hostile" / name).read_text().startswith('"""Promise: ')


def test_no_figure_is_missing() -> None:
    assert "FIGURE" not in PAGE
