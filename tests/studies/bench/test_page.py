"""The page and the picture are made of the results alone, and are the same each time."""

from pathlib import Path

from fedappeal.studies.bench.design import Cell
from fedappeal.studies.bench.page import tables, write_page
from fedappeal.studies.bench.picture import draw
from fedappeal.studies.bench.results import RESULTS, BenchResults
from tests.studies.bench.made import changed, made

KEPT = {"fedavg": [40.0, 50.0, 60.0], "maxfl": [61.0, 70.0, 79.0]}


def test_the_page_of_the_same_results_is_the_same_to_the_byte(tmp_path: Path) -> None:
    results = made(KEPT)
    first = write_page(results, tmp_path).read_bytes()
    (tmp_path / "again").mkdir()
    again = BenchResults.of_file(results.write(tmp_path / "again" / RESULTS))
    assert write_page(again, tmp_path / "again").read_bytes() == first
    for folder in (tmp_path, tmp_path / "again"):
        draw(again, folder / "overview")
    assert (tmp_path / "overview.svg").read_bytes() == (tmp_path / "again" / "overview.svg").read_bytes()


def test_the_page_says_what_came_out_and_what_not(tmp_path: Path) -> None:
    page = write_page(made(KEPT), tmp_path).read_text()
    assert page.index("## What we conclude") < page.index("## What we do not") < page.index("## Results")
    assert "ahead of FedAvg: maxfl (+20 on digits); behind: none" in page
    assert "about 0 of them would still be called" in page
    assert "![Each strategy against FedAvg](overview.png)" in page
    assert "`fedappeal bench`" in page or "fedappeal bench\n" in page
    assert '"strategy": "maxfl"' in page


def test_the_page_names_runs_that_ended_early(tmp_path: Path) -> None:
    fedavg, maxfl = (Cell("digits", "appeal", name) for name in KEPT)
    whole = changed(changed(made(KEPT), fedavg, rounds=(100, 100, 100)), maxfl, rounds=(100, 100, 100))
    page = write_page(changed(whole, maxfl, rounds=(7, 31, 100)), tmp_path).read_text()
    early = "- digits, appeal, maxfl: 2 of 3, after 7 to 31 of 100 rounds"
    assert f"## Runs that ended early\n\n{early}\n\n## How it was made" in page
    assert "ended early\n" not in write_page(whole, tmp_path).read_text()


def test_a_table_has_both_numbers_and_differences() -> None:
    (table,) = tables(made(KEPT), ("kept",))
    assert table.rows == (
        ("fedavg", "50 ± 10", "-"),
        ("maxfl", "70 ± 9", "+20 (+18 to +22) better"),
    )


def test_the_picture_has_each_difference(tmp_path: Path) -> None:
    draw(made({**KEPT, "adagd": [45.0, 40.0, 66.0]}), tmp_path / "overview")
    assert (tmp_path / "overview.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "overview.svg").read_text()
    assert all(f"<!-- {text} -->" in svg for text in ("+20", "(+0)", "maxfl", "adagd"))


def test_where_the_baseline_alone_was_run_there_is_no_picture(tmp_path: Path) -> None:
    results = made({"fedavg": [40.0, 50.0]})
    draw(results, tmp_path / "overview")
    assert not list(tmp_path.iterdir())
    page = write_page(results, tmp_path).read_text()
    assert "![" not in page
    assert "| fedavg | 45 ± 7 | - |" in page
