"""The committed full run: its page and picture are made of its results, and these are of today's design."""

from pathlib import Path

import pytest

from fedappeal.studies.bench.design import SEEDS, cells
from fedappeal.studies.bench.page import PAGE, PICTURE, write_page
from fedappeal.studies.bench.picture import FURTHER, draw
from fedappeal.studies.bench.results import RESULTS, BenchResults

FOLDER = Path(__file__).parents[3] / "docs" / "bench-results"


@pytest.fixture(scope="module")
def results() -> BenchResults:
    return BenchResults.of_file(FOLDER / RESULTS)


def test_the_page_is_what_its_results_give_to_the_byte(results: BenchResults, tmp_path: Path) -> None:
    assert write_page(results, tmp_path).read_bytes() == (FOLDER / PAGE).read_bytes()


def test_the_pictures_have_the_results_in_them(results: BenchResults, tmp_path: Path) -> None:
    draw(results, tmp_path / PICTURE)

    def texts(picture: Path) -> list[str]:
        lines = picture.read_text().splitlines()
        return [line.strip() for line in lines if line.strip().startswith("<!-- ")]

    for name in (PICTURE, PICTURE + FURTHER):
        assert texts(tmp_path / f"{name}.svg") == texts(FOLDER / f"{name}.svg")
        assert len(texts(FOLDER / f"{name}.svg")) > 100


def test_it_is_a_full_run_of_the_design(results: BenchResults) -> None:
    design = [cell for cell in cells() if cell.strategy in {run.strategy for run in results.cells()}]
    assert len({cell.strategy for cell in design}) >= 18
    assert (results.quick, results.seeds, results.failed, results.skipped) == (False, SEEDS, {}, {})
    assert list(results.cells()) == design
    assert results.settings == {str(cell): cell.settings for cell in design}
    assert all(row.seeds == tuple(range(SEEDS)) and len(row.rounds) == SEEDS for row in results.rows)
