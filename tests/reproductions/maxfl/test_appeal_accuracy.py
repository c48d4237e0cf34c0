"""MaxFL's figure 1: rank correlations by hand, claims that can fail, and numbers that are table 1's."""

import json
from pathlib import Path

import pytest

from fedappeal.reproductions import load_experiment
from fedappeal.reproductions.maxfl.appeal_accuracy import rank_correlation
from fedappeal.studies.experiment import Unmeasured
from fedappeal.studies.plan import slug

FOLDER = Path(__file__).parents[3] / "docs" / "reproductions"
EXPERIMENT = load_experiment("maxfl-figure1")


def test_rank_correlations_by_hand() -> None:
    assert rank_correlation([1, 2, 30], [5, 6, 7]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # 1 - 6 (0 + 1 + 1 + 0) / (4 * 15)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    # Ranks 1.5, 1.5, 3 and 1, 2, 3: covariance 1.5 over sqrt(1.5 * 2).
    assert rank_correlation([0, 0, 9], [1, 2, 3]) == pytest.approx(1.5 / 3**0.5)
    with pytest.raises(Unmeasured):
        rank_correlation([0, 0, 0], [1, 2, 3])


def test_claims_by_hand() -> None:
    appeal = {"fedavg": 0.1, "fedprox": 0.9, "scaffold": 0.2, "perfedavg": 0.3, "qffl": 0.0, "mw-fed": 0.4}
    numbers = {**appeal, "maxfl": 0.5}
    first = [claim for claim in EXPERIMENT.claims if claim.group == EXPERIMENT.arms[0].group]
    rises = first[0]
    highest = {claim.text: claim for claim in first if "seen: accuracy" not in claim.text and "over" in claim.text}
    assert rises.margin(lambda arm, key: numbers[arm]) == pytest.approx(1.0)
    down = lambda arm, key: numbers[arm] if "appeal" in key else -numbers[arm]  # noqa: E731
    assert rises.margin(down) == pytest.approx(-1.0)
    over = highest["MaxFL over MW-Fed: accuracy %"]
    assert over.margin(lambda arm, key: numbers[arm]) == pytest.approx(0.1)
    assert over.margin(down) == pytest.approx(-0.1)
    assert {slug(text.split()[2]) for text in highest} >= set(appeal)


def test_the_papers_figure_by_hand() -> None:
    """The paper: FedAvg .04/43.70, Scaffold 0/39.90, PerFedAvg .05/46.62, qFFL 0/29.92, MW-Fed .04/44.41, MaxFL.

    Ranks of GM-Appeal 3.5, 1.5, 5, 1.5, 3.5, 6; of accuracy 3, 2, 5, 1, 4, 6: covariance 16.5 over sqrt(16.5 * 17.5).
    """
    paper = {arm.label: arm.paper for arm in EXPERIMENT.arms if arm.group == EXPERIMENT.arms[0].group}
    pairs = [(row["gm-appeal"][0], row["accuracy"][0]) for name, row in paper.items() if name != "FedProx"]  # type: ignore[index]
    x, y = zip(*pairs, strict=True)
    assert rank_correlation(x, y) == pytest.approx((16.5 / 17.5) ** 0.5)


def test_its_numbers_are_table_ones() -> None:
    ours, theirs = (json.loads((FOLDER / f"maxfl-{name}.json").read_text()) for name in ("figure1", "table1"))
    rows = {row["name"]: row for row in theirs["rows"]}
    assert [row["name"] for row in ours["rows"]] == [arm.name for arm in EXPERIMENT.arms]
    for row in ours["rows"]:
        seeds = 5 if row["name"].endswith("-rate-0.05") else 10
        assert row["seeds"] == rows[row["name"]]["seeds"] == list(range(seeds))
        assert row["ours"] == {key: rows[row["name"]]["ours"][key] for key in ours["measures"]}
        assert load_experiment("maxfl-table1").settings == EXPERIMENT.settings
