"""Rows that known results lack are run alone, and join them."""

import pytest

from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.design import Cell
from fedappeal.studies.bench.runs import missing
from tests.studies.bench.made import changed, made

KNOWN = made({"fedavg": [40.0, 50.0], "maxfl": [61.0, 70.0]})
FEDAVG, MAXFL, ADAGD = (Cell("digits", "appeal", name) for name in ("fedavg", "maxfl", "adagd"))


def test_what_is_missing_are_rows_without_all_seeds() -> None:
    assert missing((FEDAVG, MAXFL, ADAGD), KNOWN, 2) == (ADAGD,)
    assert missing((FEDAVG, MAXFL, ADAGD), changed(KNOWN, MAXFL, seeds=(0,)), 2) == (MAXFL, ADAGD)


def test_results_with_other_settings_or_seeds_or_with_everything_are_refused() -> None:
    other = KNOWN.model_copy(update={"settings": {**KNOWN.settings, str(MAXFL): {"rounds": 1}}})
    for known, seeds, said in (
        (KNOWN, 3, "seeds = 3 is not allowed: the known results have 2"),
        (other, 2, "row 'digits, appeal, maxfl' was run with other settings"),
        (KNOWN, 2, "these results have all rows"),
    ):
        with pytest.raises(ConfigError, match=said):
            missing((FEDAVG, MAXFL), known, seeds)


def test_known_and_new_rows_stand_in_the_designs_order() -> None:
    """A strategy of another package comes last; the design has MaxFL before ADA-GD."""
    toy = "tests.server.test_run:Toy"
    new = made({"maxfl": [62.0, 71.0], toy: [1.0, 2.0]}).model_copy(
        update={"versions": {"torch": ("3",)}, "failed": {"digits, appeal, maxfl, seed 0": "again"}}
    )
    known = made({"adagd": [5.0, 6.0], "fedavg": [40.0, 50.0], "maxfl": [0.0, 0.0]}).model_copy(
        update={
            "failed": {"digits, appeal, maxfl, seed 1": "full disk", "digits, appeal, adagd, seed 2": "full disk"},
            "skipped": {"digits, appeal, maxfl": "no data", "chem97, appeal, maxfl": "no data"},
        }
    )
    both = known.with_rows(new)
    assert [cell.strategy for cell in both.cells()] == ["fedavg", "maxfl", "adagd", toy]
    assert both.numbers(MAXFL, "kept") == {0: 62.0, 1: 71.0}
    assert both.numbers(FEDAVG, "kept") == {0: 40.0, 1: 50.0}
    assert both.versions == {"torch": ("2", "3")}
    assert both.failed == {"digits, appeal, adagd, seed 2": "full disk", "digits, appeal, maxfl, seed 0": "again"}
    assert both.skipped == {"chem97, appeal, maxfl": "no data"}
    assert list(both.settings) == [str(cell) for cell in both.cells()]
    assert both.titles() == known.titles()


def test_rows_in_two_parts_are_the_results_of_one() -> None:
    whole = made({"fedavg": [40.0, 50.0], "maxfl": [61.0, 70.0], "adagd": [1.0, 2.0]})
    both = KNOWN.with_rows(made({"adagd": [1.0, 2.0]}))
    assert both.model_dump(exclude={"command"}) == whole.model_dump(exclude={"command"})
    assert both.command == "fedappeal bench\nfedappeal bench"
