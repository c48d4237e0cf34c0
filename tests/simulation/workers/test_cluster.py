"""Workers are Ray actors on the nodes of a cluster; a node that dies is noticed; all of Ray's ports want a token."""

import importlib
import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import Machine
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.jobs import run_on_ray
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers.cluster import RayOptions, check_workers
from tests.simulation.workers.test_workers import ALONE, assert_same, run, settings

pytestmark = pytest.mark.ray

WATCHED = """
import json, os, sys
from pathlib import Path
import psutil
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.engine import simulate
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers.cluster import OWN

seen = {}
os.environ.update(OWN)

def look(record):
    children = psutil.Process().children(recursive=True)
    seen["names"] = sorted({each.name() for each in children})
    seen["told"] = any(os.environ["RAY_AUTH_TOKEN"] in " ".join(each.cmdline()) for each in children)
    mode = [each.environ().get("RAY_AUTH_MODE") for each in children if each.name() in ("gcs_server", "raylet")]
    seen["mode"] = mode
    listening = [c.laddr.ip for each in children for c in each.net_connections("inet") if c.status == "LISTEN"]
    seen["at"] = sorted({ip.removeprefix("::ffff:") for ip in listening})
    seen["actors"] = sum(each.name().startswith("ray::EngineWorker") for each in children)

config = RunConfig.parse(json.loads(sys.argv[2]))
path = Path(sys.argv[1])
simulate(config, RunPlan.of(config, path).folder({}), Simulation(threads=1, workers=2), look)
print(json.dumps(seen))
"""


def test_workers_on_this_machine_listen_on_loopback_and_want_a_token(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("needs ray")
    config = settings(strategy="maxfl")
    told = json.dumps(config.as_config())
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "workers"), told], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert {"gcs_server", "raylet"} <= set(seen["names"])
    assert seen["at"] == ["127.0.0.1"]
    assert set(seen["mode"]) == {"token"}
    assert not seen["told"]
    assert seen["actors"] == 2
    assert_same(run(tmp_path / "one", config, ALONE), tmp_path / "workers")


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


def test_a_node_that_dies_is_noticed(cluster: Any, tmp_path: Path) -> None:
    """The last test of the cluster: it takes one of its two nodes."""
    psutil: Any = importlib.import_module("psutil")
    config = settings(strategy="scaffold", rounds=5)
    one = run(tmp_path / "one", config, ALONE)
    path = tmp_path / "two"

    def kill(record: Any) -> None:
        if record.server_round == 2:
            node = next(iter(cluster.worker_nodes))
            its_own = psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True)
            cluster.remove_node(node, allow_graceful=False)
            # They end a little after their node: on a busy machine the run could be over before that.
            assert not psutil.wait_procs(its_own, timeout=60)[1]

    # All CPUs of a node for each worker: else Ray may put both on one node.
    simulate(
        config, RunPlan.of(config, path).folder({}), Simulation(threads=1, ray=cluster.address, ray_cpus=2.0), kill
    )
    assert_same(one, path)
    lost = [event["clients"] for event in Record(path).events if event["event"] == "worker-lost"]
    assert lost in ([3], [4])  # Ray chooses which node has which worker


def test_what_cannot_be_is_refused() -> None:
    config = RunConfig.parse({"clients": 3, "unseen-clients": 1})
    with pytest.raises(ConfigError, match=r"workers = 5 is not allowed: 0 \(no workers; with ray one a node\) to 4"):
        check_workers(5, config)
    with pytest.raises(ConfigError, match="ray-cpus = 0 is not allowed without ray-gpus"):
        RayOptions("auto", cpus=0)
    with pytest.raises(ConfigError, match="ray-gpus = -1 is not allowed"):
        RayOptions("auto", gpus=-1)
    with pytest.raises(ConfigError, match="jobs = 2 is not allowed with --ray"):
        Machine(2, ray=RayOptions("auto")).for_jobs(2)
