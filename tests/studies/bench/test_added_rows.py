"""Runs that known results lack are done alone, and join them."""

import pytest

from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.design import Cell
from fedappeal.studies.bench.runs import missing
from fedappeal.studies.results import Row
from tests.studies.bench.made import changed, made

KNOWN = made({"fedavg": [[40.0, 50.0]], "maxfl": [[61.0, 70.0]]}, task="chem97", behaviour="defect")
FEDAVG, MAXFL, ADAGD = (Cell("chem97", "defect", 6, name) for name in ("fedavg", "maxfl", "adagd"))


def test_what_is_missing_are_rows_without_all_seeds() -> None:
    assert missing((FEDAVG, MAXFL, ADAGD), KNOWN, 2) == (ADAGD,)
    assert missing((FEDAVG, MAXFL, ADAGD), changed(KNOWN, MAXFL, seeds=(0,)), 2) == (MAXFL, ADAGD)
    assert missing((FEDAVG, MAXFL), KNOWN, 3) == (FEDAVG, MAXFL)
    ten = made({"fedavg": [[40.0] * 10]}, task="chem97", behaviour="defect")
    with pytest.raises(ConfigError, match="these results have all rows"):
        missing((FEDAVG,), ten, 20)  # the design has no more seeds of this behaviour


def test_results_with_other_settings_are_refused() -> None:
    other = changed(KNOWN, MAXFL, settings={"rounds": 1})
    with pytest.raises(ConfigError, match="row 'chem97-defect-6-maxfl' was run with other settings"):
        missing((FEDAVG, ADAGD), other, 2)


def test_known_and_new_rows_stand_in_the_designs_order() -> None:
    """A strategy of another package comes last; the design has MaxFL before ADA-GD."""
    toy = "tests.server.test_server_run:Toy"
    new = made({"maxfl": [[62.0, 71.0]], toy: [[1.0, 2.0]]}, task="chem97", behaviour="defect").model_copy(
        update={
            "versions": {"torch": ("3",)},
            "sources": {toy: "0123456789abcdef"},
        }
    )
    new = changed(new, MAXFL, failed={0: "again"})
    known = made(
        {"adagd": [[5.0, 6.0]], "fedavg": [[40.0, 50.0]], "maxfl": [[0.0, 0.0]]}, task="chem97", behaviour="defect"
    )
    known = changed(known, MAXFL, failed={1: "full disk"}, skipped="no data")
    known = changed(known, ADAGD, failed={2: "full disk"})
    without = Row(name="fmnist-appeal-0-maxfl", group="", paper={}, seeds=(), ours={}, skipped="no data")
    known = known.model_copy(update={"rows": (*known.rows, without)})
    both = known.with_rows(new)
    assert [cell.strategy for cell in both.cells()] == ["fedavg", "maxfl", "adagd", toy]
    assert both.numbers(MAXFL, "kept") == {0: 62.0, 1: 71.0}
    assert both.numbers(FEDAVG, "kept") == {0: 40.0, 1: 50.0}
    assert (both.versions, both.sources) == ({"torch": ("2", "3")}, new.sources)
    assert both.failed == {(MAXFL.key, 0): "again", (ADAGD.key, 2): "full disk"}
    assert {row.name: row.skipped for row in both.rows if row.skipped} == {"fmnist-appeal-0-maxfl": "no data"}
    assert [row.name for row in both.rows if row.settings] == [cell.key for cell in both.cells()]


def test_rows_and_seeds_in_two_parts_are_the_results_of_one() -> None:
    whole = made(
        {"fedavg": [[40.0, 50.0]], "maxfl": [[61.0, 70.0]], "adagd": [[1.0, 2.0]]}, task="chem97", behaviour="defect"
    )
    first = made({"fedavg": [[40.0]], "maxfl": [[61.0]]}, task="chem97", behaviour="defect")
    rest = made(
        {"fedavg": [[0.0, 50.0]], "maxfl": [[0.0, 70.0]], "adagd": [[1.0, 2.0]]}, task="chem97", behaviour="defect"
    )
    for cell, kept in ((FEDAVG, 50.0), (MAXFL, 70.0)):
        (row,) = (row for row in rest.rows if row.name == cell.key)
        ours = {**{key: values[1:] for key, values in row.ours.items()}, "kept": (kept,)}
        rest = changed(rest, cell, seeds=(1,), rounds=(10,), ours=ours)
    both = first.with_rows(rest)
    assert both.model_dump() == whole.model_dump()
