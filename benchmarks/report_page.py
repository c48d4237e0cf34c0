"""What a large run's report costs: seconds to write it, its bytes, seconds until Chromium shows text and all charts.

The run is made up: NumPy draws who joins, sits out and leaves over the rounds, and the folder is written as a run
writes it. The page is opened in Chromium by Playwright, in turn with one that loads Plotly's script and draws
nothing; medians are printed.
``python benchmarks/report_page.py --clients 1000 --rounds 10000 --json FILE``
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import described
from playwright.sync_api import sync_playwright

from fedappeal.record.decisions import LONGEST
from fedappeal.record.run_folder import HISTORY, MEASUREMENTS, PARTICIPATION, RunFolder
from fedappeal.settings.config import RunConfig

LEGEND = {"j": "joined", "s": "sat-out", "l": "left", "f": "failed"}
LETTERS = np.array(list(LEGEND))
LEAVERS = 0.1
"""Share of the clients that leave in the course of the run."""
FIRST_TEXT = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0] ?? 0"
"""Milliseconds until the first text was on the screen; 0: there is none."""
FAILS = 0.002
"""Share of the requests that fail."""


def write_run(folder: Path, clients: int, rounds: int, seed: int = 0) -> None:
    """Write a run's folder: each client has its own liking, which grows over the rounds; some leave."""
    draw = np.random.default_rng(seed)
    RunFolder.create(folder, RunConfig.parse({"task": "fmnist", "clients": clients, "rounds": rounds}))
    ids = np.array([f"client-{k:04d}" for k in range(clients)])
    liking = draw.random(clients)
    leaves = np.where(draw.random(clients) < LEAVERS, draw.integers(1, rounds + 1, clients), rounds + 1)
    names = json.dumps(ids.tolist())
    loss, score = (np.round(draw.random(clients), 4) for _ in range(2))
    measured = f'"client-ids": {names}, "loss": {json.dumps(loss.tolist())}, "accuracy": {json.dumps(score.tolist())}'
    measured += f', "appealed": {json.dumps((loss < 0.5).astype(int).tolist())}}}\n'
    with (
        open(folder / HISTORY, "a") as history,
        open(folder / PARTICIPATION, "a") as decisions,
        open(folder / MEASUREMENTS, "a") as measurements,
    ):
        for number in range(1, rounds + 1):
            asked = np.flatnonzero(leaves >= number)
            drawn = draw.random(len(asked))
            words = np.where(drawn < 0.2 + 0.8 * liking[asked] * number / rounds, 0, 1)
            words[drawn > 1 - FAILS] = 3
            words[leaves[asked] == number] = 2
            line = {"round": number, "asked": list(ranges(asked, ids)), "decisions": texts(words), "legend": LEGEND}
            decisions.write(json.dumps(line) + "\n")
            history.write(json.dumps(history_line(number, rounds, words)) + "\n")
            measurements.write(f'{{"round": {number}, {measured}')


def ranges(asked: np.ndarray, ids: np.ndarray) -> Iterator[str]:
    """Yield clients that follow each other as one text."""
    for part in np.split(asked, np.flatnonzero(np.diff(asked) > 1) + 1):
        yield f"{ids[part[0]]}:{ids[part[-1]][-4:]}" if len(part) > 1 else str(ids[part[0]])


def texts(words: np.ndarray) -> list[str]:
    """Return decisions in a row as letters, each with how often it follows itself, in texts as a run writes them."""
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    lengths = np.diff(starts, append=len(words))
    whole = "".join(
        f"{letter}{length}" if length > 1 else letter
        for letter, length in zip(LETTERS[words[starts]].tolist(), lengths.tolist(), strict=True)
    )
    return [whole[start : start + LONGEST] for start in range(0, len(whole), LONGEST)]


def history_line(number: int, rounds: int, words: np.ndarray) -> dict[str, Any]:
    """Return a round's line of the history."""
    joined, sat_out, left, failed = np.bincount(words, minlength=4).tolist()
    done = number / rounds
    counts = {"asked": len(words), "joined": joined, "sat_out": sat_out, "left": left, "failed": failed, "surplus": 0}
    quality = {"gm_appeal": round(0.9 * done, 4), "accuracy": round(0.5 + 0.4 * done, 4), "loss": round(2 - done, 4)}
    costs = {"bytes_up": 210_000 * joined, "bytes_down": 420_000 * len(words), "seconds": round(2 + 0.1 * done, 4)}
    failures = {f"client-{k:04d}": "round timeout" for k in range(failed)}
    evaluated = {"evaluated": len(words), "expected": len(words)}
    return {"round": number, **counts, **quality, **evaluated, **costs, **({"failures": failures} if failed else {})}


def written(folder: Path) -> dict[str, float]:
    """Write the report as a user does; return its seconds, CPU seconds, and most memory in MiB."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedappeal.cli.main", "report", str(folder)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - started, "cpu_seconds": cpu, "memory_mib": after.ru_maxrss / 1024}


def opened(pages: dict[str, Path], chromium: str, repetitions: int) -> dict[str, float]:
    """Open pages in turn, each without a cache; return median seconds to the first text and last chart, and nodes."""
    found: dict[str, list[float]] = {
        f"{name}_{what}": [] for name in pages for what in ("first_seconds", "seconds", "cpu_seconds", "nodes")
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        machine = browser.new_browser_cdp_session()

        def cpu_seconds() -> float:
            processes = machine.send("SystemInfo.getProcessInfo")["processInfo"]
            return sum(each["cpuTime"] for each in processes if each["type"] == "renderer")

        for _ in range(repetitions):
            for name, page in pages.items():
                before = cpu_seconds()
                tab = browser.new_page(viewport={"width": 1400, "height": 900})
                tab.goto(page.as_uri())
                tab.wait_for_selector("html[data-drawn]", state="attached")
                found[f"{name}_cpu_seconds"].append(cpu_seconds() - before)
                found[f"{name}_seconds"].append(tab.evaluate("Number(document.documentElement.dataset.drawn)") / 1000)
                found[f"{name}_first_seconds"].append(tab.evaluate(FIRST_TEXT) / 1000)
                found[f"{name}_nodes"].append(tab.evaluate("document.querySelectorAll('*').length"))
                tab.context.close()
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def script_alone(folder: Path) -> Path:
    """Write a page that loads the report's script and draws nothing, beside which the report is measured."""
    (script,) = folder.glob("plotly-*.min.js")
    page = folder / "script.html"
    page.write_text(f'<!doctype html><html><body><script src="{script.name}"></script></body></html>')
    return timed(page)


def timed(page: Path) -> Path:
    """Let a page whose scripts draw all before they end say when that was, where it does not itself; return it."""
    if "dataset.drawn" in page.read_text():
        return page
    said = "<script>document.documentElement.dataset.drawn ??= performance.now()</script>"
    page.write_text(page.read_text().replace("</body>", f"{said}</body>"))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder in which the run is written, and kept")
    parser.add_argument("--before", type=Path, help="page that other code wrote of the folder kept, opened in turn")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("report_page.py: needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.keep or Path(temporary)) / "run"
        if not folder.exists():
            write_run(folder, given.clients, given.rounds)
        found: dict[str, Any] = {"clients": given.clients, "rounds": given.rounds, **written(folder)}
        page = folder / "report.html"
        found |= {"page_bytes": page.stat().st_size, "run_bytes": sum(p.stat().st_size for p in folder.iterdir())}
        pages = {"script": script_alone(folder.parent), "report": page}
        if given.before:
            pages["before"] = timed(given.before)
        found |= opened(pages, chromium, given.repetitions)
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps({**described(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
