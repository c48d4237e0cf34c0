"""The federation of docker-compose.yml: seconds a round, memory a client, size of the image, time to the first round.

``python benchmarks/containers.py --json FILE``: needs a Docker engine with Compose; builds the image, twice, and
starts a project of its own, which it removes. With ``--base-image NAME`` for another base than the Dockerfile's.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import described

from fedappeal.record.run_folder import HISTORY, read_lines

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "fedappeal-benchmark"
ROUNDS = 20
MEMORY = """
import json
from pathlib import Path
for each in Path("/proc").glob("[0-9]*"):
    if b"containers.replica" in (each / "cmdline").read_bytes() and (each / "stat").read_text().split()[3] == "1":
        lines = (line.split() for line in (each / "smaps_rollup").read_text().splitlines()[1:])
        print(json.dumps({name.rstrip(":"): int(size) for name, size, _ in lines}))
"""


class Project:
    """A compose project with a copy of the sources, an image and a folder of results of its own."""

    def __init__(self, folder: Path, base_image: str) -> None:
        self.runs, self.sources = folder / "runs", folder / "sources"
        self.runs.mkdir()
        ignored = shutil.ignore_patterns(".*cache", ".git", ".venv", "__pycache__", "data", "runs", "tests")
        shutil.copytree(ROOT, self.sources, ignore=ignored)
        self.env = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "IMAGE": PROJECT,
            "RUNS_DIR": str(self.runs),
            "FLEET_PORT": "0",
            "ROUNDS": str(ROUNDS),
            **({"BASE_IMAGE": base_image} if base_image else {}),
        }

    def compose(self, *arguments: str) -> str:
        """Run `docker compose` and return what it printed."""
        command = ["docker", "compose", "--env-file", os.devnull, *arguments]
        done = subprocess.run(command, env=self.env, cwd=self.sources, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def build(self, *arguments: str) -> float:
        """Build the image; return the seconds that it took."""
        return seconds(lambda: self.compose("build", *arguments))

    def build_changed(self) -> float:
        """Build the image after a line of a source file has changed."""
        with (self.sources / "fedappeal" / "__init__.py").open("a") as file:
            file.write(f"# changed at {time.time()}\n")  # else an earlier build would do
        return self.build()

    def up(self, clients: int) -> tuple[float, Path]:
        """Start it; return the seconds to the first finished round, and the run's folder."""
        before, started = set(self.runs.iterdir()), time.monotonic()
        self.compose("up", "--detach", "--no-build", "--scale", f"client={clients}")
        while not (fresh := set(self.runs.iterdir()) - before) or not read_lines(next(iter(fresh)) / HISTORY):
            time.sleep(0.1)
        return time.monotonic() - started, fresh.pop()

    def wait(self, folder: Path) -> list[dict[str, Any]]:
        """Wait for the end of a run; return its history."""
        while len(history := read_lines(folder / HISTORY)) < ROUNDS:
            time.sleep(0.5)
        return history

    def memory(self, clients: int) -> list[dict[str, int]]:
        """Return each client process's memory in KiB, as /proc has it."""
        return [
            json.loads(self.compose("exec", "-T", "--index", str(k + 1), "client", "python", "-c", MEMORY))
            for k in range(clients)
        ]

    def down(self) -> None:
        """End and remove all but the image."""
        self.compose("down", "--volumes", "--timeout", "5")


def seconds(act: Callable[[], object]) -> float:
    started = time.monotonic()
    act()
    return time.monotonic() - started


def size_of(image: str) -> int:
    command = ["docker", "image", "inspect", "--format", "{{.Size}}", image]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(project: Project, clients: int) -> dict[str, Any]:
    """Measure a federation of a number of clients, started from nothing but the image."""
    first, folder = project.up(clients)
    history = project.wait(folder)
    memory = project.memory(clients)
    project.down()
    return {
        "clients": clients,
        "seconds to the first finished round": round(first, 1),
        "seconds a round": round(statistics.median(float(line["seconds"]) for line in history[1:]), 2),
        **{
            f"MiB a client, {name}": round(statistics.median(each[name] for each in memory) / 1024)
            for name in ("Pss", "Rss", "Pss_Anon")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--base-image", default=os.environ.get("BASE_IMAGE", ""))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder), chosen.base_image)
        try:
            result: dict[str, Any] = {
                **described(),
                "seconds to build, nothing kept but downloads": round(project.build("--no-cache"), 1),
                "seconds to build after a change of the source": round(project.build_changed(), 1),
                "bytes of the image": size_of(PROJECT),
                "federations": [measure(project, clients) for clients in (5, 12)],
            }
        finally:
            project.down()
    chosen.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
