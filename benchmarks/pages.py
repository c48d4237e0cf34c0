"""What looking on costs a run, and what the pages of a large run cost.

``live-page``: `fedappeal local` on digits in each form in turn. Between two rounds of its middle, the CPU time in a
second of the command's own process (which follows the run, and serves the page), with what is beside it, and of the
whole federation. Pages are open in Chromium; Prometheus asks every 15 seconds; the page of one of the clients is a
process beside it.
``large-run``: a made-up run of 10,000 rounds by 1,000 clients: how long `watch` takes until its page has an address
and a visitor is told all but the charts; what `report` takes; and seconds until Chromium shows its text and the
charts in view, beside a page that loads Plotly's script and draws nothing.
"""

import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.commands import FEDAPPEAL, children_cpu, cpu, running
from benchmarks.run import Figures, Row, scaled

RUN = "local --task digits --strategy maxfl --clients 5 --rounds 100000 --no-report"
FROM = 10
"""Rounds before those that count."""
FIRST_TEXT = "performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0] ?? 0"
"""Milliseconds until the first text was on the screen; 0: there is none."""


@contextmanager
def browser() -> Iterator[Any]:
    """Run Chromium until the end of the ``with`` statement."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("google-chrome"))


def scrape(url: str, ended: threading.Event) -> None:
    """Ask for metrics as Prometheus does."""
    import httpx

    while not ended.wait(15.0):
        httpx.get(url, trust_env=False).raise_for_status()


def at_round(number: int, folder: Path) -> None:
    """Wait for a round's end."""
    history = folder / "history.jsonl"
    while not history.exists() or history.read_bytes().count(b"\n") < number:
        time.sleep(0.05)


def looked_on(options: str, looker: str, rounds: int) -> Figures:
    """Return CPU milliseconds in a second of the command, with what looks on beside it, and of the federation."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory())) / "run"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        words = [*RUN.split(), *options.format(port=port).split(), "--out", str(folder)]
        pid, address = stack.enter_context(running(words, folder.with_suffix(".log")))
        at_round(1, folder)
        pids, url = [pid], address() if looker == "visitor" else ""
        if looker == "volunteer":
            (activity, *_) = sorted(folder.rglob("activity.json"))
            words = [sys.executable, "-P", "-m", "client.page", str(activity.parent), "0", ""]
            page = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert page.stdout is not None
            pids, url = [pid, page.pid], page.stdout.readline().decode().split()[-1]
        elif looker == "Prometheus":
            ended = threading.Event()
            stack.callback(ended.set)
            threading.Thread(target=scrape, args=(f"http://127.0.0.1:{port}/metrics", ended)).start()
        if url:
            stack.enter_context(browser()).new_page().goto(url)
        marks = []
        for number in (FROM, FROM + rounds):
            at_round(number, folder)
            marks.append((time.monotonic(), cpu(pids, children=False), cpu([pid])))
    wall, mine, whole = (b - a for a, b in zip(*marks, strict=True))
    return {"command ms": 1e3 * mine / wall, "federation ms": 1e3 * whole / wall, "s": wall / rounds}


def large_run(folder: Path) -> None:
    """Write the folder of a large run as a run writes it: some sit out, all are evaluated in every round."""
    from fedappeal.record.decisions import packed
    from fedappeal.record.lines import HISTORY, MEASUREMENTS, PARTICIPATION
    from fedappeal.runs.plan import RunPlan
    from fedappeal.settings.config import RunConfig

    clients, rounds = scaled(1000), range(1, scaled(10_000) + 1)
    config = RunConfig.parse({"task": "fmnist", "clients": clients, "rounds": len(rounds)})
    run, ids = RunPlan.of(config, folder).folder({}), [f"client-{number:04d}" for number in range(clients)]
    joins = {n: {k: "joined" if i % 7 != n else "sat-out" for i, k in enumerate(ids)} for n in range(7)}
    run.append(PARTICIPATION, *(packed(number, joins[number % 7]) for number in rounds))
    line = {"asked": 1000, "joined": 857, "sat_out": 143, "bytes_up": 10**8, "bytes_down": 10**8, "seconds": 9.5}
    line |= {"evaluated": 1000, "expected": 1000, "loss": 0.5, "accuracy": 0.9, "gm_appeal": 0.8}
    run.append(HISTORY, *({"round": number, **line} for number in rounds))
    losses = [round(k / clients, 4) for k in range(clients)]
    measured = {"client-ids": ids, "loss": losses, "accuracy": losses, "appealed": [int(x < 0.5) for x in losses]}
    run.append(MEASUREMENTS, *({"round": number, **measured} for number in rounds))


def watched(rounds: int) -> Figures:
    """Return CPU seconds until `watch` has an address, and a visitor's seconds until all but the charts is told."""
    import httpx

    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        large_run(folder)
        with running(["watch", str(folder)], folder.with_suffix(".log")) as (pid, address):
            url, started, used = address(), time.monotonic(), cpu([pid])
            with httpx.Client(follow_redirects=True, trust_env=False, timeout=60) as client:
                client.get(url)
                with client.stream("GET", f"{url.split('?')[0]}events") as stream:
                    event = next(line for line in stream.iter_lines() if line.startswith("data: "))
            seconds = time.monotonic() - started
    return {"CPU s": used, "told s": seconds, "told MB": len(event) / 1e6}


def reported(script_alone: bool, rounds: int) -> Figures:
    """Write the report as a user does and open it in Chromium; or a page with Plotly's script alone."""
    with TemporaryDirectory() as scratch, browser() as chromium:
        folder = Path(scratch) / "run"
        large_run(folder)
        used, page = children_cpu(), folder / "report.html"
        subprocess.run([*FEDAPPEAL, "report", str(folder)], check=True, stdout=sys.stderr)
        figures = {"writing CPU s": children_cpu() - used}
        if script_alone:
            (script,) = folder.parent.glob("**/plotly-*.min.js")
            page = script.parent / "script.html"
            page.write_text(
                f'<!doctype html><html><body><script src="{script.name}"></script>'
                "<script>document.documentElement.dataset.drawn = performance.now()</script></body></html>"
            )
        tab = chromium.new_page(viewport={"width": 1400, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-drawn]", state="attached")
        figures |= {"charts in view s": tab.evaluate("Number(document.documentElement.dataset.drawn)") / 1000}
        figures |= {"first text s": tab.evaluate(FIRST_TEXT) / 1000, "MB": page.stat().st_size / 1e6}
        chromium.close()
    return figures


ROWS = {
    "live-page": Row(
        {
            "without": partial(looked_on, "", ""),
            "a page that is not open": partial(looked_on, "--page 0", ""),
            "an open page": partial(looked_on, "--page 0", "visitor"),
            "TensorBoard": partial(looked_on, "--track tensorboard", ""),
            "Prometheus": partial(looked_on, "--metrics-port {port}", "Prometheus"),
            "a volunteer's page": partial(looked_on, "", "volunteer"),
        },
        "without",
        "command ms",
        rounds=40,
    ),
    "large-run/watch": Row({"watch": watched}, by="told s"),
    "large-run/report": Row(
        {"report": partial(reported, False), "Plotly's script alone": partial(reported, True)},
        "Plotly's script alone",
        "charts in view s",
    ),
}
