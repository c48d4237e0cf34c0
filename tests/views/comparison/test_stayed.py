"""Who stayed: read off a folder written by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedappeal.record.decisions import pack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CONFIG, HISTORY, PARTICIPATION
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.views.comparison.stayed import WhoStayed, draw
from tests.views.comparison.recorded import BASIS

ROUNDS = [
    (True, {"a": "joined", "b": "joined", "c": "joined"}),
    (False, {"a": "joined", "b": "sat-out", "c": "left"}),
    (False, {"a": "surplus", "b": "joined"}),
    (True, {"a": "joined", "b": "joined"}),
    (False, {"b": "failed"}),
]


def folder_of(path: Path, rounds: list[tuple[bool, dict[str, str]]] = ROUNDS) -> Path:
    folder = RunPlan.of(RunConfig.parse({"clients": 4, "rounds": len(rounds), "strategy": "fedavg"}), path).folder({})
    for number, (mandatory, decisions) in enumerate(rounds, 1):
        line = {**BASIS, "round": number, "mandatory": mandatory, "seconds": 0.1}
        measured = {"accuracy": number / 10, "served": number / 5, "adapted_accuracy": number / 8}
        folder.append(HISTORY, line | (measured if number < 5 else {}))
        folder.append(PARTICIPATION, pack_decisions(number, decisions))
    return path


def test_willing_joiners_are_a_share_of_all_clients_in_free_rounds(tmp_path: Path) -> None:
    who = WhoStayed.of(folder_of(tmp_path / "run"))
    assert who.willing == pytest.approx((1 + 2 + 0) / 4 / 3)  # of four clients; one was never asked
    assert (who.served, who.score, who.used, who.asked) == (0.8, 0.4, 0.5, 2)
    assert who.row() == ("fedavg", "25 %", "80 %", "40.0 %", "50.0 %", "2")
    assert who.rounds.tolist() == [[2, 1, 1, 2, 4], [2, 0, 1, 2, 0], [2, 3, 3, 3, 3]]


def test_only_the_last_rounds_count_and_none_of_them_may_be_free(tmp_path: Path) -> None:
    early = [(False, {"a": "joined"})] + [(False, {"a": "sat-out"})] * 10
    assert WhoStayed.of(folder_of(tmp_path / "early", early)).willing == 0
    asked = WhoStayed.of(folder_of(tmp_path / "asked", [(True, {"a": "joined"})] * 3))
    assert (asked.willing, asked.row()[1]) == (None, "-")


def test_a_run_that_ended_early_has_not_stayed(tmp_path: Path) -> None:
    path, joined = tmp_path / "run", [(False, {"a": "joined", "b": "joined", "c": "joined", "d": "joined"})] * 3
    folder = RunFolder.open(folder_of(path, joined))
    assert WhoStayed.of(path).willing == 1
    folder.event("finished", round=3, reason="no direction is left")
    assert WhoStayed.of(path).willing == 1, "it was its last round"
    config = json.loads((path / CONFIG).read_text())
    config["settings"]["rounds"] = 5
    (path / CONFIG).write_text(json.dumps(config))
    who = WhoStayed.of(path)
    assert (who.willing, who.row()[1]) == (None, "ended in round 3")


def test_the_picture_has_a_cell_a_client_and_round(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    who = WhoStayed.of(folder_of(tmp_path / "run"))
    panels = draw([who, who]).axes
    assert len(panels) == 2
    assert np.array_equal(panels[0].images[0].get_array(), who.rounds)
