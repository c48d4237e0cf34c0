"""What `fedappeal simulate` refuses of workers and Ray, before anything is started."""

import contextlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedappeal.cli.start import start_simulations
from fedappeal.runs.launch.in_process import InProcess, Machine
from fedappeal.runs.plan import swept_plans
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers.cluster import RayOptions

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")

SMALL = {"task": "digits", "clients": 3, "rounds": 1, "mandatory-rounds": 1}


@pytest.mark.parametrize(
    ("sweep", "at_once", "workers", "address", "message"),
    [
        ([], 1, 4, "", r"workers = 4 is not allowed: 0 \(no workers; with ray one a node\) to 3, the clients"),
        ([], 1, -1, "", "workers = -1 is not allowed"),
        (["seed=0,1"], 1, 2, "", "workers = 2 is not allowed with several runs: --jobs, or --ray ADDRESS"),
        pytest.param(["seed=0,1"], 2, 0, "auto", "jobs = 2 is not allowed with --ray", marks=needs_ray),
    ],
)
def test_what_cannot_be_is_refused(
    sweep: list[str], at_once: int, workers: int, address: str, message: str, tmp_path: Path
) -> None:
    plans = swept_plans(SMALL, sweep, str(tmp_path / "runs"))
    machine = Machine(at_once, ray=RayOptions(address))
    with pytest.raises(ConfigError, match=message):
        start_simulations(plans, InProcess(Simulation("layers", threads=1), machine, workers))
    assert not (tmp_path / "runs").exists()


def test_a_sweep_goes_to_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def on_ray(jobs: list[object], options: RayOptions, *told: object) -> None:
        asked.append((len(jobs), options))

    monkeypatch.setattr("fedappeal.runs.launch.in_process.run_on_ray", on_ray)
    monkeypatch.setattr("fedappeal.runs.launch.in_process.ray_cluster", lambda *given: contextlib.nullcontext())
    options = RayOptions("10.0.0.1:6379", 2.0, 1.0)
    plans = swept_plans(SMALL, ["seed=0,1"], str(tmp_path / "runs"))
    start_simulations(plans, InProcess(Simulation("layers", threads=1), Machine(ray=options)))
    assert asked == [(2, options)]
