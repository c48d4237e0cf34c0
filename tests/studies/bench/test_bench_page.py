"""The page and the picture are made of the results alone, and are the same each time."""

from functools import cache
from pathlib import Path

import pytest

from fedappeal.studies.bench.bench_page import (
    MEASURES,
    PICTURE,
    behaviour_table,
    ignition_table,
    side,
    tables,
    task_table,
    with_verdicts,
    write_page,
)
from fedappeal.studies.bench.bench_results import RESULTS, BenchResults
from fedappeal.studies.bench.design import CORE, RATES, Cell
from fedappeal.studies.bench.ignition import Level, ignition
from tests.studies.bench.made import changed, made, with_ours

DEAD, ALIVE = [0.0] * 10, [20.0] * 10
"""Ten seeds, of which none lives, or all do."""
KEPT = {"fedavg": [DEAD, DEAD, DEAD, ALIVE], "maxfl": [DEAD, ALIVE, ALIVE, ALIVE], "term": [DEAD] * 4}


@cache
def kept() -> BenchResults:
    return with_verdicts(made(KEPT))


def test_the_page_of_the_same_results_is_the_same_to_the_byte(tmp_path: Path) -> None:
    results = kept()
    first = write_page(results, tmp_path).read_bytes()
    (tmp_path / "again").mkdir()
    again = BenchResults.of_file(results.write(tmp_path / "again" / RESULTS))
    assert write_page(again, tmp_path / "again").read_bytes() == first
    assert (tmp_path / f"{PICTURE}.svg").read_bytes() == (tmp_path / "again" / f"{PICTURE}.svg").read_bytes()


@pytest.mark.parametrize(
    ("lived", "shown"),
    [
        ((0, 0, 0, 20), "8 [8, 8]"),
        ((0, 3, 9, 20), "8 [4, 8]"),  # 9 of 20: exactly [0.23, 0.68]; 3 of 20: [0.03, 0.38]
        ((0, 0, 0, 0), ">8 [>8, >8]"),
        ((0, 0, 0, 8), ">8 [8, >8]"),
        ((0, 14, 4, 20), "8 [2, 8]"),  # rising shares of 14 and 4 are 9 and 9; of 14 alone [0.46, 0.88]
        ((20, 20, 20, 20), "0 [0, 0]"),
    ],
)
def test_the_ignition_point_is_the_level_at_which_half_live(lived: tuple[int, ...], shown: str) -> None:
    from scipy import stats

    levels = []
    for goodwill, number in zip((0, 2, 4, 8), lived, strict=True):
        ends = stats.binomtest(number, 20).proportion_ci()
        levels.append(Level(goodwill, number, 20, ends.low, ends.high))
    assert ignition(tuple(levels)) == shown


def test_strategies_are_paired_with_fedavg_by_seed() -> None:
    """All ten seeds live with less goodwill under MaxFL, with more under TERM: p is 2 / 2^10 in each sign test."""
    outcomes = {(v.group, v.claim): v for v in kept().verdicts}
    earlier = outcomes["digits, ignition", "maxfl ignites before fedavg"]
    assert (earlier.here, side(earlier), earlier.p) == ("10:0 of 10 seeds", "ahead", pytest.approx(2 / 2**10))
    assert side(outcomes["digits, ignition", "term ignites before fedavg"]) == "behind"
    at_eight = outcomes[f"digits, {CORE} 8", "maxfl over fedavg: runs that live"]
    assert (at_eight.here, side(at_eight)) == ("10:0 of 10 live", "ahead")
    at_zero = outcomes[f"digits, {CORE} 0", "maxfl over fedavg: runs that live"]
    assert (at_zero.here, side(at_zero)) == ("0:0 of 10 live", "undecided")


def test_the_page_says_what_came_out_and_what_was_not_run(tmp_path: Path) -> None:
    page = write_page(kept(), tmp_path).read_text()
    assert page.startswith(
        "# Who keeps its volunteers\n\n**Less goodwill than FedAvg needs: maxfl on digits; more: term on digits.** "
    )
    assert "| maxfl | 8 [8, 8] ahead |" in page
    assert "| term | >14 [>14, >14] behind |" in page
    assert "120 runs by `fedappeal bench`." in page
    assert "- not run yet: chem97, appeal (800 runs); " in page
    assert "digits, appeal (680 runs)" in page  # 120 of ten strategies, four levels and 20 seeds are there


def test_a_row_without_all_seeds_is_not_run_yet() -> None:
    partly = made(KEPT)
    cell = Cell("digits", CORE, 10, "maxfl")
    (row,) = (row for row in partly.rows if row.name == cell.key)
    ours = {key: values[:9] for key, values in row.ours.items()}
    partly = with_verdicts(changed(partly, cell, seeds=tuple(range(9)), rounds=(), ours=ours))
    assert cell not in partly.cells()
    assert dict(ignition_table(partly).rows)["maxfl"] == "not run yet"  # type: ignore[arg-type]
    assert "maxfl ignites before fedavg" not in {verdict.claim for verdict in partly.verdicts}


def test_a_run_that_does_not_tell_who_joins_leaves_no_curve() -> None:
    results = with_ours(made(KEPT), Cell("digits", CORE, 14, "maxfl"), kept=(None, *ALIVE[1:]))
    assert dict(ignition_table(with_verdicts(results)).rows)["maxfl"] == "ended early"  # type: ignore[arg-type]


def test_floors_stand_beside_the_rows() -> None:
    """A strategy with 60 % of the clients stands beside random joining at 60 %: between 40 and 50, at 0.4."""
    results = made({"fedavg": [DEAD, DEAD, DEAD, [60.0] * 10], "maxfl": [DEAD, DEAD, DEAD, [24.0] * 10]})
    for behaviour, score in zip(RATES, (10.0, 20.0, 40.0, 50.0, 55.0), strict=True):
        floor = made({"fedavg": [[100.0] * 10]}, behaviour=behaviour)
        results = results.with_rows(with_ours(floor, Cell("digits", behaviour, 14, "fedavg"), score=(score,) * 10))
    rows = {row[0]: row for row in task_table(results, "digits").rows}
    assert list(rows) == ["fedavg", "maxfl", "(alone)", "(everyone)"]
    assert task_table(results, "digits").header[-1] == "accuracy % if random"
    assert task_table(made(KEPT), "digits").header[-1] == "MB", "a row of which no floors were run has none beside it"
    assert [row[-1] for row in rows.values()] == ["44.0", "-", "-", "-"], "below 25 % it was not run"
    assert rows["(everyone)"][2] == "55.0±0.0"
    assert rows["(alone)"][2:5] == ("11.0±0.0", "-", "-")  # the untrained model's 10 and what they regret, 1
    assert {verdict.claim.split()[0] for verdict in with_verdicts(results).verdicts} == {"maxfl"}  # floors are none


def test_measures_are_compared_with_fedavgs_at_the_largest_goodwill(tmp_path: Path) -> None:
    """MaxFL's regret is 2 to 11 lower in all ten seeds, its worst decile is the same; TERM's runs are all dead."""
    results = with_ours(made(KEPT), Cell("digits", CORE, 14, "fedavg"), regret=tuple(range(3, 13)))
    results = with_verdicts(results)
    outcomes = {(v.group, v.claim): v for v in results.verdicts}
    regret = outcomes["digits, regret", "maxfl over fedavg: regret"]
    assert (regret.here, side(regret)) == ("+6.5 [+4.3, +8.7]", "ahead")
    assert side(outcomes["digits, worst", "maxfl over fedavg: worst"]) == "level"
    assert side(outcomes["digits, kept", "term over fedavg: kept"]) == "behind"
    rows = {row[0]: row for row in task_table(results, "digits").rows}
    assert rows["fedavg"][1:4] == ("20±0", "1.0±0.0", "7.5±3.0")
    assert rows["maxfl"][1:5] == ("20±0", "1.0±0.0", "1.0±0.0 ahead", "1.0±0.0")
    write_page(results, tmp_path)
    page = (tmp_path / MEASURES).read_text()
    assert "\n\n**Less regret than with FedAvg: maxfl on digits, term on digits; more: none.**\n\n" in page
    assert "| maxfl | 20±0 | 1.0±0.0 | 1.0±0.0 ahead | 1.0±0.0 |" in page


def test_other_behaviours_are_counted() -> None:
    results = made({"fedavg": [[10.0, 30.0, 40.0]], "maxfl": [[50.0, 60.0, 70.0]]}, behaviour="defect")
    results = with_ours(results, Cell("digits", "defect", 14, "maxfl"), stayed=(100.0, 90.0, 80.0))
    table = behaviour_table(results)
    assert (table.header, table.rows) == (("", "defect"), (("fedavg", "2/3 (1)"), ("maxfl", "3/3 (90)")))


def test_headings_fit_a_terminal_of_80_characters() -> None:
    for table in tables(made(KEPT)):
        for part in table.rich(80):
            assert all(
                len(word) <= (column.width or 0) for column in part.columns for word in str(column.header).split()
            )


def test_a_baseline_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    page = write_page(with_verdicts(made({"fedavg": [DEAD, DEAD, ALIVE, ALIVE]})), tmp_path).read_text()
    assert "of 0 curves" in page
