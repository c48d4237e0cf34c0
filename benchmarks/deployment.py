"""Seconds a round of a deployed federation: our long-lived clients against Flower's stock SuperNodes.

Both arms run the same ServerApp, ClientApp, strategy and settings against a SuperLink of their own on this machine,
in turn, several times; only what runs the clients differs. Absolute figures say little on a shared machine: read the
ratios. ``python benchmarks/deployment.py --json FILE``
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from machine import described

from fedappeal.federation.clients import ClientProcesses
from fedappeal.federation.submit import build_fab, run_status, submit
from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.processes import QUIET
from fedappeal.record.run_folder import HISTORY, RunFolder, read_lines
from fedappeal.settings.config import RunConfig

CLIENTS = 3
MODES = ("train+evaluate", "train")


def settings(evaluate: bool, rounds: int, out: Path, task: str) -> RunConfig:
    return RunConfig.parse(
        {
            "task": task,
            "clients": CLIENTS,
            "partition": "iid",
            "rounds": rounds,
            "local-steps": 30,
            "batch-size": 32,
            "evaluate-every": 1 if evaluate else 0,
            "mandatory-rounds": rounds,
            "strategy": "maxfl",
            "out": str(out),
            "resume": True,
            "min-clients": CLIENTS,
            "start-timeout": 240,
            "round-timeout": 240,
        }
    )


def start_stock(stack: ExitStack, superlink: SuperLink, folder: Path) -> list[int]:
    """Start one stock SuperNode a client; return their process ids."""
    pids = []
    for i in range(CLIENTS):
        command = [
            str(Path(sys.executable).parent / "flower-supernode"),
            "--insecure",
            "--superlink",
            superlink.fleet_address,
            "--node-config",
            f"partition-id={i} num-partitions={CLIENTS}",
            "--host",
            "127.0.0.1",
            "--port",
            str(_free_port()),
        ]
        env = {**os.environ, **QUIET, "FLWR_HOME": str(folder / f"node{i}"), "OMP_NUM_THREADS": "1"}
        env["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), env["PATH"]))
        env["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        (folder / f"node{i}").mkdir(parents=True)
        with (folder / f"supernode-{i}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        stack.callback(_end_tree, process)
        pids.append(process.pid)
    return pids


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_tree(process: "subprocess.Popen[bytes]") -> None:
    family = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(recursive=True))]
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()


def _cpu(pids: list[int]) -> float:
    """CPU seconds so far of processes and of their children, ended ones included."""
    total = 0.0
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
    return total


def one_run(
    superlink: SuperLink, clients: list[int], folder: Path, evaluate: bool, rounds: int, task: str
) -> dict[str, Any]:
    """Run once; return seconds of each round and CPU seconds a round of the SuperLink and the clients."""
    config = settings(evaluate, rounds, folder, task)
    RunFolder.create(folder, config)
    run_id = submit(superlink.control_address, build_fab(config.as_config()))
    deadline = time.monotonic() + 600
    marks: list[tuple[int, float, float]] = []
    while True:
        lines = read_lines(folder / HISTORY)
        if len(lines) > (marks[-1][0] if marks else 0):
            server = _own_cpu(superlink.pid)
            marks.append((len(lines), server, _cpu(clients)))
        if len(lines) == rounds:
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"run did not finish; see {superlink.log_file}")
        time.sleep(0.02)
    while not run_status(superlink.control_address, run_id).finished:
        time.sleep(0.2)
    seconds = [float(line["seconds"]) for line in lines]
    joined = {int(line["joined"]) for line in lines}
    if joined != {CLIENTS}:
        raise RuntimeError(f"not every client joined every round: {joined}; see {folder}")
    spans = max(1, marks[-1][0] - marks[0][0])
    # The last round also evaluates where only training is measured: it is left out there.
    return {
        "seconds": seconds if evaluate else seconds[:-1],
        "superlink_cpu": (marks[-1][1] - marks[0][1]) / spans,
        "client_cpu": (marks[-1][2] - marks[0][2]) / spans,
        "bytes_up": lines[0]["bytes_up"],
        "bytes_down": lines[0]["bytes_down"],
    }


def _own_cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main() -> None:
    """Measure and print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=8, help="rounds a run of the long-lived arm")
    parser.add_argument("--stock-rounds", type=int, default=3, help="rounds a run of the stock arm")
    parser.add_argument("--task", default="fmnist")
    arguments = parser.parse_args()

    samples: dict[str, list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedappeal-benchmark-")))
        arms = {}
        for name in ("long-lived", "stock"):
            superlink = stack.enter_context(SuperLink(root / name / "superlink"))
            if name == "stock":
                pids = start_stock(stack, superlink, root / name)
            else:
                config = settings(True, 1, root / name, arguments.task)
                folder = root / name
                clients = ClientProcesses(
                    config, initial=folder / "initial", states=folder / "states", logs=folder / "logs", device="cpu"
                )
                stack.callback(clients.end)
                clients.start()
                clients.connect(superlink.fleet_address)
                pids = [clients.pid]
            arms[name] = (superlink, pids)
        for repetition in range(arguments.repetitions):
            for mode in MODES:
                for name, (superlink, pids) in arms.items():
                    rounds = arguments.rounds if name == "long-lived" else arguments.stock_rounds
                    run = one_run(
                        superlink,
                        pids,
                        root / name / f"run-{mode}-{repetition}",
                        mode == "train+evaluate",
                        rounds,
                        arguments.task,
                    )
                    samples.setdefault(f"{name} {mode}", []).append(run)
                    median = statistics.median(run["seconds"])
                    print(f"{repetition + 1} {name:>10} {mode:<14} {median:8.3f} s a round", flush=True)

    medians = {key: statistics.median(s for run in runs for s in run["seconds"]) for key, runs in samples.items()}
    ratios = {mode: _ratios(samples[f"long-lived {mode}"], samples[f"stock {mode}"]) for mode in MODES}
    print(f"\n{'medians':<16}{'long-lived':>12}{'stock':>10}{'ratio':>8}  range of the repetitions")
    for mode, found in ratios.items():
        ours, stock = medians[f"long-lived {mode}"], medians[f"stock {mode}"]
        whole = f"{statistics.median(found):>8.1f}  {min(found):.1f} to {max(found):.1f}"
        print(f"{mode:<16}{ours:>10.3f} s{stock:>8.2f} s{whole}")
    if arguments.json:
        report = {
            **{**described(), "clients": CLIENTS, "task": arguments.task},
            **{"medians": medians, "ratios": ratios, "samples": samples},
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def _ratios(ours: list[dict[str, Any]], stock: list[dict[str, Any]]) -> list[float]:
    """Return how many times longer a stock round takes, by repetition."""
    pairs = zip(stock, ours, strict=True)
    return [statistics.median(a["seconds"]) / statistics.median(b["seconds"]) for a, b in pairs]


if __name__ == "__main__":
    main()
