"""The page and the pictures are made of the results alone, and are the same each time."""

import math
from pathlib import Path

import pytest

from fedappeal.studies.bench.design import Cell
from fedappeal.studies.bench.page import PICTURES, decided, side, tables, tally, with_verdicts, write_page
from fedappeal.studies.bench.results import RESULTS, BenchResults
from tests.studies.bench.made import changed, made, with_kept

KEPT = {"fedavg": [10.0, 50.0, 60.0], "maxfl": [61.0, 70.0, 79.0]}
FEDAVG, MAXFL = (Cell("digits", "appeal", name) for name in KEPT)


def with_appeal(*numbers: float) -> BenchResults:
    """Results in which MaxFL's GM-Appeal is this, FedAvg's 1."""
    whole = made(KEPT)
    (row,) = (row for row in whole.rows if row.name == str(MAXFL))
    return with_verdicts(changed(whole, MAXFL, ours={**row.ours, "gm-appeal": numbers}))


def test_the_page_of_the_same_results_is_the_same_to_the_byte(tmp_path: Path) -> None:
    results = with_verdicts(made(KEPT))
    first = write_page(results, tmp_path).read_bytes()
    (tmp_path / "again").mkdir()
    again = BenchResults.of_file(results.write(tmp_path / "again" / RESULTS))
    assert write_page(again, tmp_path / "again").read_bytes() == first
    for name in PICTURES.values():
        assert (tmp_path / f"{name}.svg").read_bytes() == (tmp_path / "again" / f"{name}.svg").read_bytes()


def test_strategies_are_paired_with_fedavg_by_seed() -> None:
    """Of 0.21, 0.2, 0.19: mean 0.2, deviation 0.01, t of two degrees of freedom 4.303."""
    kept, appeal, score = with_appeal(1.21, 1.2, 1.19).verdicts
    assert (kept.claim, kept.here, side(kept)) == ("maxfl over fedavg: runs that live", "3:2 of 3 live", "undecided")
    assert appeal.low == pytest.approx(0.2 - 4.3027 * 0.01 / math.sqrt(3), abs=1e-4)
    assert (side(appeal), side(score)) == ("ahead", "level")
    assert side(with_appeal(0.79, 0.8, 0.81).verdicts[1]) == "behind"


def test_the_page_says_what_came_out_and_what_not(tmp_path: Path) -> None:
    page = write_page(with_appeal(1.21, 1.2, 1.19), tmp_path).read_text()
    verdict = "with 3 seeds, of 3 differences from FedAvg 1 are ahead, 0 behind, 1 level and 1 undecided"
    assert page.startswith(f"# Who keeps its volunteers\n\n**Decided in part**: {verdict}; ")
    assert "| maxfl | 0/1/0/0 | 1/0/0/0 | 0/0/1/0 |" in page
    assert "| appeal, digits: maxfl over fedavg: GM-Appeal | +0.20 [+0.18, +0.22] | ahead |" in page
    assert page.index("## What we do not conclude") < page.index("## How it was made")
    assert "`fedappeal bench`; 6 runs ended early." in page


def test_the_tables_have_all_numbers() -> None:
    numbers, counts, found = tables(with_appeal(1.21, 1.2, 1.19))
    assert [(row[0], row[numbers.header.index("clients that join at the end, %")]) for row in numbers.rows[1:]] == [
        ("fedavg", "40 ± 26"),
        ("maxfl", "70 ± 9"),
    ]
    assert (counts.rows, found.rows) == (
        tally(with_appeal(1.21, 1.2, 1.19)).rows,
        decided(with_appeal(1.21, 1.2, 1.19)).rows,
    )


def test_a_seed_without_a_number_leaves_a_difference_undecided() -> None:
    partly = with_verdicts(with_kept(made(KEPT), MAXFL, (None, 70.0, 79.0)))
    assert (partly.verdicts[0].unmeasured, side(partly.verdicts[0])) == (1, "undecided")


def test_a_baseline_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    page = write_page(with_verdicts(made({"fedavg": [40.0, 50.0]})), tmp_path).read_text()
    assert "of 0 differences" in page
