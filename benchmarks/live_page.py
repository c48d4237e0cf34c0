"""What looking on costs a run: CPU time of the live page, a tracker, the metrics' port and a volunteer's page.

`fedappeal local` is run in each form in turn. Between two rounds of its middle, the CPU time of the command's own
process (which follows the run, and serves the page) and of the whole federation is read from the system. A visitor
listens to the stream of events and fetches the charts as often as the page in a browser does. The command looks at
the run ten times a second whatever a round takes, so its CPU time is taken for each second; what a page adds to it is
a share of the federation's CPU time in a second without a page. Loading Plotly (once, 0.3 s) is not in it. Medians.
``tensorboard`` is `--track tensorboard`; ``metrics`` a `--metrics-port` that is asked every 15 seconds, as Prometheus
does; ``volunteer`` the page of one of the clients, a process beside it that an open browser asks once a second. What
each loads once, before the rounds that count, is not in it either.
``python benchmarks/live_page.py --json FILE``; ``--arms metrics volunteer``: these alone; ``--open``: how long a page
takes that shows a run of 10,000 rounds by 1,000 clients: the command's CPU time until it has an address, and the time
from a visit to all but the charts.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from machine import described

from fedappeal.record.decisions import packed
from fedappeal.record.run_folder import HISTORY, PARTICIPATION, RunFolder, read_lines
from fedappeal.settings.config import RunConfig

ARMS = ("no page", "unvisited", "visited", "tensorboard", "metrics", "volunteer")
OPTIONS = {"unvisited": ["--page", "0"], "visited": ["--page", "0"], "tensorboard": ["--track", "tensorboard"]}
SCRAPE, LOOK = 15.0, 1.0
"""Seconds between two requests of Prometheus, and of a volunteer's page."""
RUN = ["--task", "digits", "--strategy", "maxfl", "--clients", "5", "--rounds", "100000"]
FROM = 10
"""Rounds before those that count."""


def visit(url: str, ended: threading.Event) -> None:
    """Listen to the events, and fetch the charts when it is time to."""
    with httpx.Client(follow_redirects=True, trust_env=False, timeout=60) as client:
        client.get(url)
        root = url.split("?")[0]

        def charts() -> None:
            while not ended.wait(2.0):
                again = client.get(f"{root}charts.json").json()["again"]
                ended.wait(max(5.0, again) - 2.0)

        threading.Thread(target=charts, daemon=True).start()
        try:
            with client.stream("GET", f"{root}events") as stream:
                for _ in stream.iter_lines():
                    if ended.is_set():
                        return
        except httpx.HTTPError:
            return


def ask(url: str, each: float, ended: threading.Event) -> None:
    """Ask for the same again and again."""
    with httpx.Client(follow_redirects=True, trust_env=False, timeout=60) as client:
        client.get(url)
        page = url if url.endswith("/metrics") else f"{url.split('?')[0]}data.json"
        while not ended.wait(each):
            client.get(page).raise_for_status()


def volunteers_page(folder: Path, ended: threading.Event) -> "subprocess.Popen[bytes]":
    """Start the page of one of a run's clients, as the client does, and a visitor; return its process."""
    while not (states := sorted(folder.rglob("activity.json"))):
        time.sleep(0.1)
    command = [sys.executable, "-P", "-m", "client.page", str(states[0].parent), "0", ""]
    page = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert page.stdout is not None
    url = page.stdout.readline().decode().split()[-1]
    threading.Thread(target=ask, args=(url, LOOK, ended), daemon=True).start()
    return page


def cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def federation_cpu(command: psutil.Process) -> dict[int, float]:
    """Return the CPU seconds of a command's process and of all below it that run."""
    return {each.pid: cpu(each) for each in [command, *command.children(recursive=True)]}


def one_run(arm: str, folder: Path, rounds: int) -> dict[str, float]:
    """Return CPU seconds in a second of the command and of the federation, and the median seconds of a round.

    Args:
        arm: what looks on.
        folder: of the run.
        rounds: how many count.
    """
    command = [sys.executable, "-m", "fedappeal.cli.main", "local", *RUN, "--out", str(folder), "--no-report"]
    command += OPTIONS.get(arm, [])
    if arm == "metrics":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command += ["--metrics-port", str(port)]
    log = folder.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ))
    ended, beside = threading.Event(), None
    try:
        if arm == "visited":
            while (url := re.search(r"http://\S+", log.read_text())) is None:
                time.sleep(0.1)
            threading.Thread(target=visit, args=(url[0], ended), daemon=True).start()
        if arm == "volunteer":
            _at_round(1, process, folder, log)
            beside = volunteers_page(folder, ended)
        _at_round(FROM // 2, process, folder, log)
        if arm == "metrics":
            scraped = (f"http://127.0.0.1:{port}/metrics", SCRAPE, ended)
            threading.Thread(target=ask, args=scraped, daemon=True).start()
        before = _at_round(FROM, process, folder, log)
        own = -cpu(psutil.Process(beside.pid)) if beside else 0.0
        began = time.monotonic()
        after = _at_round(FROM + rounds, process, folder, log)
        own += cpu(psutil.Process(beside.pid)) if beside else 0.0
        wall = time.monotonic() - began
    finally:
        ended.set()
        if beside is not None:
            beside.kill()
            beside.wait()
        process.send_signal(signal.SIGINT)
        process.wait(60)
    whole = sum(after[pid] - before.get(pid, 0.0) for pid in after)
    seconds = [line["seconds"] for line in read_lines(folder / HISTORY)[FROM : FROM + rounds]]
    own += after[process.pid] - before[process.pid]
    return {"command": own / wall, "federation": whole / wall, "seconds": statistics.median(seconds)}


def _at_round(number: int, process: "subprocess.Popen[bytes]", folder: Path, log: Path) -> dict[int, float]:
    """Wait for a round's end; return the federation's CPU seconds then."""
    while not (folder / HISTORY).exists() or (folder / HISTORY).read_bytes().count(b"\n") < number:
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.05)
    return federation_cpu(psutil.Process(process.pid))


def opened(folder: Path) -> dict[str, float]:
    """Return a long run's CPU seconds until its page has an address, and a visitor's seconds until all is told."""
    run = RunFolder.create(folder, RunConfig(rounds=10_000, clients=1000))
    ids = [f"client-{number:04d}" for number in range(1000)]
    words = {
        number: {each: "joined" if k % 7 != number else "sat-out" for k, each in enumerate(ids)}
        for number in range(7)
    }
    run.append(PARTICIPATION, *(packed(number, words[number % 7]) for number in range(1, 10_001)))
    counts = {"asked": 1000, "joined": 857, "sat_out": 143, "bytes_up": 10**8, "bytes_down": 10**8, "seconds": 9.5}
    run.append(HISTORY, *({"round": n, "accuracy": 0.9, "gm_appeal": 0.8, **counts} for n in range(1, 10_001)))
    command, log = [sys.executable, "-m", "fedappeal.cli.main", "watch", str(folder)], folder.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        while (url := re.search(r"http://\S+\n", log.read_text())) is None:
            time.sleep(0.01)
        start, address = cpu(psutil.Process(process.pid)), time.monotonic()
        with httpx.Client(follow_redirects=True, trust_env=False, timeout=60) as client:
            client.get(url[0].strip())
            with client.stream("GET", f"{url[0].split('?')[0]}events") as stream:
                everything = next(line for line in stream.iter_lines() if line.startswith("data: "))
        told = time.monotonic()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return {"start CPU": start, "told": told - address, "megabytes": len(everything) / 1e6}


def main() -> None:
    """Run the forms in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40, help="how many count")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS[1:], default=ARMS[1:])
    parser.add_argument("--open", action="store_true")
    options = parser.parse_args()
    if options.open:
        with tempfile.TemporaryDirectory() as folder:
            print({key: round(value, 3) for key, value in opened(Path(folder) / "run").items()})
        return
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in (ARMS[0], *options.arms)}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for arm in found:
                found[arm].append(one_run(arm, Path(folder) / f"{repeat}-{arm.replace(' ', '-')}", options.rounds))
                print(arm, {key: round(value, 5) for key, value in found[arm][-1].items()}, flush=True)
    median = {
        arm: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for arm, runs in found.items()
    }
    without = median["no page"]
    shown: dict[str, Any] = {"machine": described(), "arms": median, "shares": {}}
    for arm in options.arms:
        shares = [
            (run["command"] - bare["command"]) / bare["federation"]
            for run, bare in zip(found[arm], found["no page"], strict=True)
        ]
        shown["shares"][arm] = statistics.median(shares)
        print(
            f"{arm}: {1000 * (median[arm]['command'] - without['command']):.2f} ms of CPU a second more, "
            f"{100 * statistics.median(shares):.2f} % of the federation's {1000 * without['federation']:.0f} ms"
        )
    if options.json:
        options.json.write_text(json.dumps(shown, indent=1) + "\n")


if __name__ == "__main__":
    main()
