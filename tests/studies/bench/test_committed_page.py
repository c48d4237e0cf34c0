"""The committed runs: their page and picture are made of their results, and these are of today's design."""

from pathlib import Path

import pytest

from fedappeal.studies.bench.bench_page import MEASURES, PAGE, PICTURE, write_page
from fedappeal.studies.bench.bench_results import RESULTS, BenchResults
from fedappeal.studies.bench.design import cells
from fedappeal.studies.experiment_page import MOST_WORDS

FOLDER = Path(__file__).parents[3] / "docs" / "bench-results"


@pytest.fixture(scope="module")
def results() -> BenchResults:
    return BenchResults.of_file(FOLDER / RESULTS)


def test_the_page_is_what_its_results_give_to_the_byte(results: BenchResults, tmp_path: Path) -> None:
    write_page(results, tmp_path)
    for name in (PAGE, MEASURES):
        page = (tmp_path / name).read_bytes()
        assert page == (FOLDER / name).read_bytes()
        assert len(page.split()) <= MOST_WORDS
    drawn = [(folder / f"{PICTURE}.svg").read_text().count("<use ") for folder in (tmp_path, FOLDER)]
    assert drawn[0] == drawn[1] > 100


def test_its_rows_are_of_the_design(results: BenchResults) -> None:
    design = [cell for cell in cells() if cell.key in {row.name for row in results.rows}]
    assert [row.name for row in results.rows] == [cell.key for cell in design]
    assert [row.settings for row in results.rows] == [cell.settings for cell in design]
    assert all(set(row.seeds) <= set(range(cell.seeds)) for row, cell in zip(results.rows, design, strict=True))
