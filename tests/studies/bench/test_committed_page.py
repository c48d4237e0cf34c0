"""The committed full run: its page and picture are made of its results, and these are of today's design."""

from pathlib import Path

import pytest

from fedappeal.studies.bench.design import SEEDS, cells
from fedappeal.studies.bench.page import PAGE, PICTURES, write_page
from fedappeal.studies.bench.results import RESULTS, BenchResults
from fedappeal.studies.page import MOST_WORDS

FOLDER = Path(__file__).parents[3] / "docs" / "bench-results"


@pytest.fixture(scope="module")
def results() -> BenchResults:
    return BenchResults.of_file(FOLDER / RESULTS)


def test_the_page_is_what_its_results_give_to_the_byte(results: BenchResults, tmp_path: Path) -> None:
    page = write_page(results, tmp_path).read_bytes()
    assert page == (FOLDER / PAGE).read_bytes()
    assert len(page.split()) <= MOST_WORDS
    for name in PICTURES.values():
        drawn = [(folder / f"{name}.svg").read_text().count("<use ") for folder in (tmp_path, FOLDER)]
        assert drawn[0] == drawn[1] > 1000


def test_it_is_a_full_run_of_the_design(results: BenchResults) -> None:
    design = [cell for cell in cells() if cell.strategy in {run.strategy for run in results.cells()}]
    assert len({cell.strategy for cell in design}) >= 18
    assert (results.quick, results.seeds, results.failed, results.skipped) == (False, SEEDS, {}, {})
    assert list(results.cells()) == design
    assert results.settings == {str(cell): cell.settings for cell in design}
    assert all(row.seeds == tuple(range(SEEDS)) and len(row.rounds) == SEEDS for row in results.rows)
