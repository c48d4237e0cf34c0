"""Mandatory rounds and goodwill in whole runs: what members that are never content cost the others."""

from pathlib import Path
from typing import Any

from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation

NEVER_CONTENT: dict[str, Any] = {
    **{"clients": 4, "model": "logistic", "rounds": 9, "local-steps": 2, "strategy": "fedavg"},
    **{"requirement": "fixed", "fixed.loss": 0.0},
}


def played(folder: Path, **changed: Any) -> list[tuple[bool, int]]:
    config = RunConfig.parse(NEVER_CONTENT | {key.replace("_", "-"): value for key, value in changed.items()})
    simulate(config, RunPlan.of(config, folder).folder({}), Simulation("sequential", threads=1))
    return [(line["mandatory"], line["joined"]) for line in Record(folder).history]


def test_members_that_no_model_appeals_to_are_asked_in_half_of_the_rounds_at_most(tmp_path: Path) -> None:
    rounds = played(tmp_path / "run", goodwill=-1)
    assert [asked for asked, _ in rounds].count(True) == 5  # rounds after one without a joiner are among them
    assert all(joined == (4 if asked else 0) for asked, joined in rounds)


def test_members_that_were_asked_beyond_their_goodwill_sit_out(tmp_path: Path) -> None:
    rounds = played(tmp_path / "run", goodwill=2, mandatory_rounds=6, on_empty_round="keep")
    assert rounds == [(True, 4)] * 2 + [(True, 0)] * 4 + [(False, 0)] * 3


def test_without_evaluation_a_free_round_tells(tmp_path: Path) -> None:
    rounds = played(tmp_path / "run", goodwill=-1, evaluate_every=0, rounds=20, on_empty_round="keep")
    assert [number for number, (asked, _) in enumerate(rounds, 1) if asked] == [1, 2, 3, 4, 6, 7, 8, 9]


def test_the_papers_number_is_the_first_rounds(tmp_path: Path) -> None:
    rounds = played(tmp_path / "run", goodwill=-1, mandatory_rounds=-1, rounds=12, on_empty_round="keep")
    assert [asked for asked, _ in rounds] == [True] * 10 + [False] * 2
