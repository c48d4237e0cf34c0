"""The page on security: its table of attacks has a test for each row, and a row for each test."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
ATTACKS = PAGE.partition("## Attacks and their tests")[2].partition("\n## ")[0]
ROWS = [line.strip("|").split(" | ") for line in ATTACKS.splitlines() if line.startswith("| ")][1:]
HOSTILE = sorted(path.name for path in (ROOT / "tests" / "hostile").glob("test_*.py"))


def test_there_is_a_row_for_each_attack() -> None:
    assert len(ROWS) >= 24
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_each_attack_names_a_test_that_is_there(row: list[str]) -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", row[2])
    assert named, row[0]
    for path in named:
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("name", HOSTILE)
def test_each_hostile_test_is_in_the_table_and_begins_with_its_promise(name: str) -> None:
    assert f"`tests/hostile/{name}`" in ATTACKS
    assert Path(ROOT / "tests" / "hostile" / name).read_text().startswith('"""Promise: ')


def test_no_figure_is_missing() -> None:
    assert "FIGURE" not in PAGE
