"""What looking on costs a run, and what the pages of a large run cost.

``live-page``: `fedappeal local` on digits in each form in turn. Between two rounds of its middle, the CPU time in a
second of the command's own process (which follows the run, and serves the page), with what is beside it, and of the
whole federation. A visitor listens to the stream of events and fetches the charts as often as the page in a browser
does; Prometheus asks every 15 seconds; the page of one of the clients is a process beside it, asked once a second.
``large-run``: a made-up run of 10,000 rounds by 1,000 clients: how long `watch` takes until its page has an address
and a visitor is told all but the charts; what `report` takes; and seconds until Chromium shows its text and last
chart, beside a page that loads Plotly's script and draws nothing.
"""

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.deployment import cpu
from benchmarks.run import Figures, Row, children_cpu

FEDAPPEAL = [sys.executable, "-m", "fedappeal.cli.main"]
RUN = ["local", "--task", "digits", "--strategy", "maxfl", "--clients", "5", "--rounds", "100000", "--no-report"]
FROM = 10
"""Rounds before those that count."""
CLIENTS, ROUNDS = 1000, 10_000
FIRST_TEXT = "performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0] ?? 0"
"""Milliseconds until the first text was on the screen; 0: there is none."""


def opened() -> Any:
    """Return an HTTP client as a browser is one."""
    import httpx

    return httpx.Client(follow_redirects=True, trust_env=False, timeout=60)


def visit(url: str, ended: threading.Event) -> None:
    """Listen to the events, and fetch the charts when it is time to."""
    import httpx

    root = url.split("?")[0]
    with opened() as client:
        client.get(url)

        def charts() -> None:
            while not ended.wait(2.0):
                ended.wait(max(5.0, client.get(f"{root}charts.json").json()["again"]) - 2.0)

        threading.Thread(target=charts, daemon=True).start()
        try:
            with client.stream("GET", f"{root}events") as stream:
                for _ in stream.iter_lines():
                    if ended.is_set():
                        return
        except httpx.HTTPError:
            return


def ask(url: str, page: str, seconds: float, ended: threading.Event) -> None:
    """Ask for the same again and again."""
    with opened() as client:
        client.get(url)
        while not ended.wait(seconds):
            client.get(page).raise_for_status()


@contextmanager
def command(words: Sequence[str], log: Path) -> Iterator[tuple[int, Callable[[], str]]]:
    """Run a command until the end of the ``with`` statement; yield its process id, and what waits for its address."""
    with log.open("wb") as out:
        process = subprocess.Popen([*FEDAPPEAL, *words], stdout=out, stderr=subprocess.STDOUT)

    def address() -> str:
        while (url := re.search(r"http://\S+(?=\s)", log.read_text())) is None:
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.01)
        return url[0]

    try:
        yield process.pid, address
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def at_round(number: int, folder: Path) -> None:
    """Wait for a round's end."""
    history = folder / "history.jsonl"
    while not history.exists() or history.read_bytes().count(b"\n") < number:
        time.sleep(0.05)


def looked_on(options: Sequence[str], looker: str, rounds: int) -> Figures:
    """Return CPU milliseconds in a second of the command, with what looks on beside it, and of the federation."""
    ended, beside = threading.Event(), None
    with tempfile.TemporaryDirectory() as scratch, socket.create_server(("127.0.0.1", 0)) as free:
        folder, port = Path(scratch) / "run", free.getsockname()[1]
        free.close()
        words = [*RUN, "--out", str(folder), *(word.format(port=port) for word in options)]
        with command(words, folder.with_suffix(".log")) as (pid, address):
            try:
                at_round(1, folder)
                look: tuple[Any, ...] = ()
                if looker == "visitor":
                    look = (visit, address())
                elif looker == "Prometheus":
                    url = f"http://127.0.0.1:{port}/metrics"
                    look = (ask, url, url, 15.0)
                elif looker == "volunteer":
                    (state, *_) = sorted(folder.rglob("activity.json"))
                    page = [sys.executable, "-P", "-m", "client.page", str(state.parent), "0", ""]
                    beside = subprocess.Popen(page, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                    assert beside.stdout is not None
                    url = beside.stdout.readline().decode().split()[-1]
                    look = (ask, url, f"{url.split('?')[0]}data.json", 1.0)
                if look:
                    threading.Thread(target=look[0], args=(*look[1:], ended), daemon=True).start()
                at_round(FROM, folder)
                own = [pid, *([beside.pid] if beside else [])]
                before = (time.monotonic(), cpu(own, children=False), cpu([pid]))
                at_round(FROM + rounds, folder)
                after = (time.monotonic(), cpu(own, children=False), cpu([pid]))
            finally:
                ended.set()
                if beside is not None:
                    beside.kill()
                    beside.wait()
    wall, mine, whole = (b - a for a, b in zip(before, after, strict=True))
    return {"command ms": 1e3 * mine / wall, "federation ms": 1e3 * whole / wall, "s": wall / rounds}


def large_run(folder: Path) -> None:
    """Write the folder of a large run as a run writes it: some sit out, all are evaluated in every round."""
    from fedappeal.record.decisions import packed
    from fedappeal.record.files import HISTORY, MEASUREMENTS, PARTICIPATION
    from fedappeal.runs.plan import RunPlan
    from fedappeal.settings.config import RunConfig

    config = RunConfig.parse({"task": "fmnist", "clients": CLIENTS, "rounds": ROUNDS})
    run = RunPlan.of(config, folder).folder({})
    ids = [f"client-{number:04d}" for number in range(CLIENTS)]
    joins = {n: {k: "joined" if i % 7 != n else "sat-out" for i, k in enumerate(ids)} for n in range(7)}
    run.append(PARTICIPATION, *(packed(number, joins[number % 7]) for number in range(1, ROUNDS + 1)))
    counts = {"asked": 1000, "joined": 857, "sat_out": 143, "bytes_up": 10**8, "bytes_down": 10**8, "seconds": 9.5}
    counts |= {"evaluated": 1000, "expected": 1000, "loss": 0.5}
    run.append(HISTORY, *({"round": n, "accuracy": 0.9, "gm_appeal": 0.8, **counts} for n in range(1, ROUNDS + 1)))
    losses = [round(k / CLIENTS, 4) for k in range(CLIENTS)]
    measured = {
        "client-ids": ids,
        "loss": losses,
        "accuracy": losses,
        "appealed": [int(loss < 0.5) for loss in losses],
    }
    run.append(MEASUREMENTS, *({"round": number, **measured} for number in range(1, ROUNDS + 1)))


def watched(rounds: int) -> Figures:
    """Return CPU seconds until `watch` has an address, and a visitor's seconds until all but the charts is told."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        large_run(folder)
        with command(["watch", str(folder)], folder.with_suffix(".log")) as (pid, address):
            url, started, used = address(), time.monotonic(), cpu([pid])
            with opened() as client:
                client.get(url)
                with client.stream("GET", f"{url.split('?')[0]}events") as stream:
                    everything = next(line for line in stream.iter_lines() if line.startswith("data: "))
            told = time.monotonic() - started
    return {"CPU s": used, "told s": told, "told MB": len(everything) / 1e6}


def reported(script_alone: bool, rounds: int) -> Figures:
    """Write the report as a user does and open it in Chromium; or a page with Plotly's script alone."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch) / "run"
        large_run(folder)
        used, page = children_cpu(), folder / "report.html"
        subprocess.run([*FEDAPPEAL, "report", str(folder)], check=True, stdout=sys.stderr)
        used = children_cpu() - used
        if script_alone:
            (script,) = folder.parent.glob("**/plotly-*.min.js")
            page = script.parent / "script.html"
            page.write_text(
                f'<!doctype html><html><body><script src="{script.name}"></script>'
                "<script>document.documentElement.dataset.drawn = performance.now()</script></body></html>"
            )
        browser = playwright.chromium.launch(executable_path=chromium)
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]", state="attached")
        found = {
            "last chart s": tab.evaluate("Number(document.documentElement.dataset.drawn)") / 1000,
            "first text s": tab.evaluate(FIRST_TEXT) / 1000,
            "nodes": float(tab.evaluate("document.querySelectorAll('*').length")),
        }
        size = page.stat().st_size / 1e6
        browser.close()
    return found if script_alone else {**found, "writing CPU s": used, "MB": size}


_PAGE = ("--page", "0")

ROWS = {
    "live-page": Row(
        {
            "nobody": partial(looked_on, (), ""),
            "a page that is not open": partial(looked_on, _PAGE, ""),
            "an open page": partial(looked_on, _PAGE, "visitor"),
            "TensorBoard": partial(looked_on, ("--track", "tensorboard"), ""),
            "Prometheus": partial(looked_on, ("--metrics-port", "{port}"), "Prometheus"),
            "a volunteer's page": partial(looked_on, (), "volunteer"),
        },
        "nobody",
        "command ms",
        rounds=40,
    ),
    "large-run/watch": Row({"watch": watched}, by="told s"),
    "large-run/report": Row(
        {"report": partial(reported, False), "Plotly's script alone": partial(reported, True)},
        "Plotly's script alone",
        "last chart s",
    ),
}
