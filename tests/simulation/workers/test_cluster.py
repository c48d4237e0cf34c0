"""Workers are Ray actors on the nodes of a cluster that wants its token; a node that dies ends the run."""

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import InProcess, Machine
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.jobs import run_on_ray
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers.cluster import NO_CLUSTER, RayOptions, WorkerLost, check_workers
from tests.simulation.workers.test_workers import ALONE, assert_same, run, settings

pytestmark = pytest.mark.ray


def test_workers_on_a_cluster_give_what_one_process_gives(cluster: Any, tmp_path: Path) -> None:
    config = settings(strategy="maxfl")
    how = Simulation(threads=1, workers=2, ray=cluster.address)
    assert_same(run(tmp_path / "one", config, ALONE), run(tmp_path / "workers", config, how))


def test_a_cluster_wants_its_token(cluster: Any, tmp_path: Path) -> None:
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
    for token in ("", "0" * 64):
        own = {**os.environ, "RAY_AUTH_TOKEN": token, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
        done = subprocess.run(
            [sys.executable, "-c", code, cluster.address], env=own, capture_output=True, text=True, timeout=120
        )
        assert done.returncode
        assert "oken" in done.stderr


def test_runs_of_a_sweep_are_done_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    ended: dict[int, str] = {}
    # Ray's processes have not the tests' modules.
    jobs = [partial(Path.touch, tmp_path / "0"), partial(Machine, 0)]
    run_on_ray(jobs, RayOptions(cluster.address), lambda number, reason: ended.update({number: reason}))
    assert ended == {0: "", 1: "jobs = 0 is not allowed: at least 1"}
    assert (tmp_path / "0").exists()
    with pytest.raises(ConfigError, match="4 CPUs, 5 are asked for"):
        run_on_ray(jobs, RayOptions(cluster.address, cpus=5), lambda number, reason: None)


def test_a_node_that_dies_ends_the_run(cluster: Any, tmp_path: Path) -> None:
    """The last test of the cluster: it takes one of its two nodes."""
    psutil: Any = importlib.import_module("psutil")
    config = settings(strategy="scaffold", rounds=5)
    path = tmp_path / "two"

    def kill(record: Any) -> None:
        if record.server_round == 2:
            node = next(iter(cluster.worker_nodes))
            its_own = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
            cluster.remove_node(node, allow_graceful=False)
            # They end a little after their node: on a busy machine the run could be over before that.
            assert not psutil.wait_procs(its_own, timeout=60)[1]

    # All CPUs of a node for each worker: else Ray may put both on one node.
    how = Simulation(threads=1, ray=cluster.address, ray_cpus=2.0)
    with pytest.raises(WorkerLost):
        simulate(config, RunPlan.of(config, path).folder({}), how, kill)
    assert [event["event"] for event in Record(path).events][-1] == "worker-lost"
    assert len(Record(path).history) == 2


def test_what_cannot_be_is_refused() -> None:
    config = RunConfig.parse({"clients": 3, "unseen-clients": 1})
    with pytest.raises(ConfigError, match=r"workers = 5 is not allowed: 0 \(no workers; with ray one a node\) to 4"):
        check_workers(5, config, NO_CLUSTER)
    with pytest.raises(ConfigError, match="ray-cpus = 0 is not allowed without ray-gpus"):
        RayOptions("auto", cpus=0)
    with pytest.raises(ConfigError, match="ray-gpus = -1 is not allowed"):
        RayOptions("auto", gpus=-1)
    of_this_machine = InProcess(Simulation(), Machine(ray=RayOptions("", gpus=1)), workers=2)
    with pytest.raises(ConfigError, match="ray-gpus are not allowed with workers of this machine"):
        of_this_machine.check([RunPlan.of(config, Path("run"))])
    with pytest.raises(ConfigError, match="jobs = 2 is not allowed with --ray"):
        Machine(2, ray=RayOptions("auto")).for_jobs(2)
