"""The committed pages: each is what its numbers give, to the byte."""

from pathlib import Path

import pytest

from fedappeal.reproductions import experiment_names, load_experiment
from fedappeal.reproductions.pages import with_list
from fedappeal.studies.page import page_of
from fedappeal.studies.record import read_record
from fedappeal.studies.verdict import verdicts

FOLDER = Path(__file__).parents[2] / "docs" / "reproductions"


@pytest.mark.parametrize("name", experiment_names())
def test_a_page_is_what_its_numbers_give(name: str) -> None:
    experiment = load_experiment(name)
    record = read_record(experiment, FOLDER)
    assert page_of(record) == (FOLDER / f"{name}.md").read_text()
    arms = {arm.name: arm for arm in experiment.arms}
    for row in record.numbers.rows:
        assert row.paper == arms[row.name].paper


def test_the_first_picture_is_drawn_from_the_numbers(tmp_path: Path) -> None:
    experiment = load_experiment("fedalign-figure2")
    assert experiment.glance is not None
    experiment.glance(read_record(experiment, FOLDER).results(), tmp_path / "gaps")
    assert (tmp_path / "gaps.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "gaps.svg").read_text()
    shown = [f"{noise} noise" in drawn for noise in ("low", "medium", "high")]
    assert shown == [True] * 3
    assert "100 examples a client" not in drawn


def test_the_list_of_pages_is_what_the_numbers_give() -> None:
    text = (FOLDER / "README.md").read_text()
    assert with_list(text, FOLDER) == text


def test_two_verdicts_by_hand() -> None:
    """MaxFL is ahead of FedAvg by 0.105, 0.08, 0.1475, 0.18 and 0.1225; FedALIGN by -2.70, -0.74, -3.46, 0.22, -3.37.

    Means 0.127 and -2.012, half of the intervals 2.776 s / sqrt(5) = 0.048 and 2.059; the paper: 0.55 - 0.01.
    """
    (first,) = (
        verdict
        for verdict in verdicts(read_record(load_experiment("maxfl-table5"), FOLDER).results())
        if verdict.claim.group == "100 steps alone" and "GM-Appeal" in verdict.claim.text
    )
    assert first.words() == "yes, 5 of 5 seeds, gap +0.13 (95 % interval +0.08 to +0.17) against the paper's +0.54"
    (second,) = (
        verdict
        for verdict in verdicts(read_record(load_experiment("fedalign-figure2"), FOLDER).results())
        if verdict.claim.group == "high noise" and verdict.claim.text == "'FedALIGN' ends ahead of 'priority only'"
    )
    assert second.words() == "level, 1 of 5 seeds, gap -2.0 points (95 % interval -4.1 to +0.0)"
