"""The pages on security and privacy: the tests that they name are there, and what attacks found is as measured."""

import json
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


def test_what_attacks_found_is_in_the_committed_figures() -> None:
    measured = json.loads((DOCS / "attacks.json").read_text())
    table = (DOCS / "privacy.md").read_text().partition("| attack |")[2].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    assert len(rows) > 5
    assert [row for row in rows if [row[0], row[1], int(row[2]), row[3]] not in measured] == []
