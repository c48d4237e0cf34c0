"""The federation of docker-compose.yml: the image's size and builds, seconds a round, and memory a client.

Needs a Docker engine with Compose. It builds the image of a copy of the sources and starts a project of its own,
which it removes; ``BASE_IMAGE`` names another base than the Dockerfile's.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.run import ROOT, Figures, Row

PROJECT = "fedappeal-benchmark"
MEMORY = """
import json
from pathlib import Path
for process in Path("/proc").glob("[0-9]*"):
    words, parent = (process / "cmdline").read_bytes(), (process / "stat").read_text().split()[3]
    if b"containers.replica" in words and parent == "1":
        lines = (line.split() for line in (process / "smaps_rollup").read_text().splitlines()[1:])
        print(json.dumps({name.rstrip(":"): int(size) for name, size, _ in lines}))
"""
_IGNORED = shutil.ignore_patterns(".*cache", ".git", ".venv", "__pycache__", "data", "runs", "tests")


def composed(clients: int, rounds: int) -> Figures:
    """Build the image, and build it again after a change; start a federation from nothing but that, and end it."""
    with tempfile.TemporaryDirectory() as folder:
        runs, sources = Path(folder) / "runs", Path(folder) / "sources"
        runs.mkdir()
        shutil.copytree(ROOT, sources, ignore=_IGNORED)
        names = {"COMPOSE_PROJECT_NAME": PROJECT, "IMAGE": PROJECT, "RUNS_DIR": str(runs), "FLEET_PORT": "0"}
        environment = {**os.environ, **names, "ROUNDS": str(rounds)}
        docker = shutil.which("docker") or sys.exit("docker is not installed")

        def compose(*words: str) -> str:
            command = [docker, "compose", "--env-file", os.devnull, *words]
            done = subprocess.run(
                command, env=environment, cwd=sources, stdout=subprocess.PIPE, text=True, check=True
            )
            return done.stdout

        def history() -> list[dict[str, Any]]:
            files = list(runs.glob("*/history.jsonl"))
            return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []

        marks = [time.monotonic()]
        compose("build", "--no-cache")
        marks.append(time.monotonic())
        with (sources / "fedappeal" / "__init__.py").open("a") as file:
            file.write(f"# changed at {time.time()}\n")  # else an earlier build would do
        compose("build")
        marks.append(time.monotonic())
        try:
            compose("up", "--detach", "--no-build", "--scale", f"client={clients}")
            while not history():
                time.sleep(0.1)
            marks.append(time.monotonic())
            while len(history()) < rounds:
                time.sleep(0.5)
            seconds = [float(line["seconds"]) for line in history()[1:]]
            ask = ("exec", "-T", "client", "python", "-c", MEMORY)
            memory = [json.loads(compose(*ask[:2], "--index", str(k + 1), *ask[2:])) for k in range(clients)]
            images = json.loads(compose("images", "--format", "json"))
        finally:
            compose("down", "--volumes", "--timeout", "5")
    waits = dict(zip(("build s", "again s", "first s"), (b - a for a, b in pairwise(marks)), strict=True))
    mib = {f"{name}, MiB": statistics.median(sizes[name] for sizes in memory) / 1024 for name in ("Pss", "Rss")}
    return {"s": seconds, **waits, "GB": max(image["Size"] for image in images) / 1e9, **mib}


ROWS = {"containers": Row({f"{n} clients": partial(composed, n) for n in (5, 12)}, by="s", rounds=20)}
