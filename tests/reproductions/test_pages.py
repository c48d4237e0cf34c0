"""The committed pages: each is what its numbers give, to the byte."""

import re
from pathlib import Path

import pytest

from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.reproductions.pages import with_list
from fedappeal.studies.experiment_page import MOST_WORDS, page_of
from fedappeal.studies.study_record import read_record
from fedappeal.views.comparison.measures import save

FOLDER = Path(__file__).parents[2] / "docs" / "reproductions"


@pytest.mark.parametrize("name", experiment_names())
def test_a_page_is_what_its_numbers_give(name: str) -> None:
    experiment = load_experiment(name)
    record = read_record(experiment, FOLDER)
    page = (FOLDER / f"{name}.md").read_text()
    assert page_of(record) == page
    assert page_of(record.with_verdicts()) == page
    assert len(page.split()) <= MOST_WORDS
    arms = {arm.name: arm for arm in experiment.arms}
    for row in record.numbers.rows:
        assert row.paper == arms[row.name].paper


def test_a_picture_is_drawn_from_the_numbers(tmp_path: Path) -> None:
    experiment = load_experiment("fedalign-figure2")
    save(experiment.glances["-gaps"](read_record(experiment, FOLDER).results()), tmp_path / "gaps")
    assert (tmp_path / "gaps.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "gaps.svg").read_text()
    assert all(f"{noise} noise" in drawn for noise in ("low", "medium", "high"))
    assert "FedALIGN, on the loss over priority only" in drawn


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_shows_only_pictures_that_are_there(page: Path) -> None:
    for picture in re.findall(r"\]\(([^)]*\.(?:png|svg))\)", page.read_text()):
        assert (FOLDER / picture).exists()


def test_the_list_of_pages_is_what_the_numbers_give() -> None:
    text = (FOLDER / "README.md").read_text()
    assert with_list(text, FOLDER) == text


def test_two_verdicts_by_hand() -> None:
    """MaxFL is ahead of FedAvg by 0.105, 0.08, 0.1475, 0.18 and 0.1225; FedALIGN by -2.66, -0.67, -3.44, 0.22, -3.37.

    Means 0.127 and -1.984, half of the intervals 2.776 s / sqrt(5) = 0.048 and 2.067; the paper: 0.55 - 0.01.
    """
    (first,) = (
        verdict
        for verdict in read_record(load_experiment("maxfl-table5"), FOLDER).numbers.verdicts
        if verdict.group == "100 steps alone" and verdict.claim == "MaxFL over FedAvg: GM-Appeal"
    )
    assert (first.here, first.papers) == ("+0.13 [+0.08, +0.17]", "+0.54")
    (second,) = (
        verdict
        for verdict in read_record(load_experiment("fedalign-figure2"), FOLDER).numbers.verdicts
        if verdict.group == "high noise" and verdict.claim == "FedALIGN over priority only: the end"
    )
    assert second.here == "-2.0 [-4.1, +0.1]"
