"""Promise: where influence is bounded, one of six clients cannot replace the model, and honest ones are not cut."""

from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.folder import KIND, SIMULATION
from fedappeal.record.reader import Record
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation


def history(path: Path, **settings: Any) -> list[dict[str, Any]]:
    """A line a round of a simulated run on digits, spread evenly over six clients."""
    chosen = {"clients": 6, "partition": "iid", "rounds": 8, "strategy": "fedavg", "seed": 2} | settings
    config = RunConfig.parse({key.replace("_", "-"): value for key, value in chosen.items()})
    folder = RunPlan.of(config, path).folder({KIND: SIMULATION})
    simulate(config, folder, Simulation(threads=1, resumable=False))
    return Record(path).history


ONE_ATTACKS = {"byzantine_share": 0.17, "byzantine_inflation": 1.0}


@pytest.mark.parametrize(
    ("strategy", "attacks"), [("fedavg", ["zero", "huge", "flip"]), ("maxfl", ["flip"]), ("fedalign", ["flip"])]
)
def test_an_attacker_costs_less_than_five_points(tmp_path: Path, strategy: str, attacks: list[str]) -> None:
    # It claims 10^12 examples, the largest appeal weight, and priority.
    alone = history(tmp_path / "honest", strategy=strategy)[-1]["accuracy"]
    assert alone > 0.85
    for attack in attacks:
        settings = ONE_ATTACKS | {"strategy": strategy, "influence": "bounded", "byzantine_attack": attack}
        attacked = history(tmp_path / attack, **settings)
        assert attacked[-1]["accuracy"] > alone - 0.05
        assert all(line["bounded"] >= 1 for line in attacked[1:])  # FedALIGN's first round asks priority clients


def test_without_bounds_it_replaces_the_model(tmp_path: Path) -> None:
    attacked = history(tmp_path / "run", byzantine_attack="zero", **ONE_ATTACKS)
    assert attacked[-1]["accuracy"] < 0.25
    assert "bounded" not in attacked[-1]


def test_of_honest_clients_nothing_is_cut(tmp_path: Path) -> None:
    default = {"clients": 10, "partition": "auto", "strategy": "maxfl", "seed": 0, "rounds": 10}
    off = history(tmp_path / "off", **default)
    bounded = history(tmp_path / "bounded", influence="bounded", **default)
    assert [line["bounded"] for line in bounded] == [0.0] * 10
    # Replies that waited for a cohort are added later: the sums differ by a rounding.
    assert bounded[-1]["accuracy"] == pytest.approx(off[-1]["accuracy"], abs=0.01)


def test_a_median_stands_an_attacker_too(tmp_path: Path) -> None:
    attacked = history(tmp_path / "run", aggregation="median", byzantine_attack="huge", **ONE_ATTACKS)
    assert attacked[-1]["accuracy"] > 0.85
