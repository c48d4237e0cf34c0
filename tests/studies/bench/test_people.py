"""The benchmark page's shares of variance, from the committed runs of six peoples by six training seeds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[3] / "docs"
ROWS = {
    name: np.array(row) for name, row in json.loads((DOCS / "bench-results/people.json").read_text())["rows"].items()
}


def shares(table: np.ndarray) -> list[int]:
    """Return the shares of people, training and the rest, in per cent, from the mean squares."""
    n, m = table.shape
    people, training = table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    rest = ((table - people - training + table.mean()) ** 2).sum() / ((n - 1) * (m - 1))
    parts = [(m * people.var(ddof=1) - rest) / m, (n * training.var(ddof=1) - rest) / n, rest]
    parts = [max(float(part), 0.0) for part in parts]
    return [round(100 * part / sum(parts)) for part in parts]


@pytest.mark.parametrize("row", ["fedavg", "maxfl", "maxfl less fedavg"])
def test_the_pages_shares_of_variance(row: str) -> None:
    one, _, other = row.partition(" less ")
    cells = re.search(rf"^\| `{row.replace(' less ', '` less `')}` \|(.*)\|$", (DOCS / "bench.md").read_text(), re.M)
    assert cells
    assert [int(cell.strip(" %")) for cell in cells[1].split("|")] == shares(ROWS[one] - ROWS.get(other, 0))


def test_the_diagonal_is_the_benchmarks_own_runs() -> None:
    rows = {row["name"]: row for row in json.loads((DOCS / "bench-results/results.json").read_text())["rows"]}
    for name, table in ROWS.items():
        assert np.diag(table) == pytest.approx(rows[f"digits-appeal-8-{name}"]["ours"]["kept"][:6], abs=1e-3)
