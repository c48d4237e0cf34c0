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
from pathlib import Path
from typing import Any

from benchmarks.run import ROOT, Figures, Row

PROJECT = "fedappeal-benchmark"
MEMORY = """
import json
from pathlib import Path
for each in Path("/proc").glob("[0-9]*"):
    if b"containers.replica" in (each / "cmdline").read_bytes() and (each / "stat").read_text().split()[3] == "1":
        lines = (line.split() for line in (each / "smaps_rollup").read_text().splitlines()[1:])
        print(json.dumps({name.rstrip(":"): int(size) for name, size, _ in lines}))
"""
_IGNORED = shutil.ignore_patterns(".*cache", ".git", ".venv", "__pycache__", "data", "runs", "tests")


def composed(clients: int, rounds: int) -> Figures:
    """Build the image, and build it again after a change; start a federation from nothing but that, and end it."""
    with tempfile.TemporaryDirectory() as folder:
        runs, sources = Path(folder) / "runs", Path(folder) / "sources"
        runs.mkdir()
        shutil.copytree(ROOT, sources, ignore=_IGNORED)
        own = {"COMPOSE_PROJECT_NAME": PROJECT, "IMAGE": PROJECT, "RUNS_DIR": str(runs), "FLEET_PORT": "0"}

        executable = shutil.which("docker") or sys.exit("docker is not installed")

        def docker(*words: str) -> tuple[float, str]:
            began, environment = time.monotonic(), {**os.environ, **own, "ROUNDS": str(rounds)}
            done = subprocess.run(
                [executable, *words], env=environment, cwd=sources, stdout=subprocess.PIPE, text=True, check=True
            )
            return time.monotonic() - began, done.stdout

        def compose(*words: str) -> tuple[float, str]:
            return docker("compose", "--env-file", os.devnull, *words)

        def history() -> list[dict[str, Any]]:
            files = list(runs.glob("*/history.jsonl"))
            return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []

        build, _ = compose("build", "--no-cache")
        with (sources / "fedappeal" / "__init__.py").open("a") as file:
            file.write(f"# changed at {time.time()}\n")  # else an earlier build would do
        again, _ = compose("build")
        try:
            began = time.monotonic()
            compose("up", "--detach", "--no-build", "--scale", f"client={clients}")
            while not history():
                time.sleep(0.1)
            first = time.monotonic() - began
            while len(history()) < rounds:
                time.sleep(0.5)
            seconds = [float(line["seconds"]) for line in history()[1:]]
            memory = [
                json.loads(compose("exec", "-T", "--index", str(k + 1), "client", "python", "-c", MEMORY)[1])
                for k in range(clients)
            ]
        finally:
            compose("down", "--volumes", "--timeout", "5")
        size = int(docker("image", "inspect", "--format", "{{.Size}}", PROJECT)[1])
    mib = {f"{name}, MiB": statistics.median(each[name] for each in memory) / 1024 for name in ("Pss", "Rss")}
    return {"s": seconds, "first s": first, "build s": build, "again s": again, "GB": size / 1e9, **mib}


ROWS = {"containers": Row({f"{n} clients": partial(composed, n) for n in (5, 12)}, by="s", rounds=20)}
