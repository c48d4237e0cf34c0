"""`docker compose up` as the README has it: everything is made, the run finishes; then once more."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedappeal.record.reader import Record
from fedappeal.views.report.report import REPORT
from tests.docker.federation import ROOT, Federation, Run, docker


@pytest.fixture(scope="module")
def fresh(new_federation: Callable[[], Federation]) -> Federation:
    federation = new_federation()
    federation.environment["ROUNDS"] = "3"
    federation.environment["OPTIONS"] = "--mandatory-rounds=-1"
    return federation


def up(federation: Federation, *arguments: str) -> tuple[str, Run]:
    """Run `docker compose up` to its end; return what it printed and the new run."""
    before = set(filter(Path.is_dir, federation.runs.iterdir()))  # beside them stands who has which client-id
    said = federation.compose(
        "up", "--no-build", "--abort-on-container-exit", "--exit-code-from", "federation", *arguments, timeout=400
    )
    (folder,) = set(filter(Path.is_dir, federation.runs.iterdir())) - before
    return said, Run(None, folder)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def first_start(fresh: Federation) -> tuple[str, Run]:
    return up(fresh)


def test_a_fresh_start_makes_everything_and_runs_to_the_end(fresh: Federation, first_start: tuple[str, Run]) -> None:
    said, run = first_start
    assert "5 clients, 5 of them new" in said
    assert "after round 3" in said
    assert [(line["asked"], line["joined"]) for line in run.history] == [(5, 5)] * 3
    assert len({p["client-id"] for p in run.participation}) == 5
    settings = Record(run.folder).config["settings"]
    assert (settings["task"], settings["strategy"], settings["clients"]) == ("digits", "maxfl", 5)
    assert "the report: /runs/" in said
    report = (run.folder / REPORT).read_text()
    (script,) = run.folder.parent.glob("plotly-*.min.js")
    assert f'src="../{script.name}"' in report
    assert "finished its 3 rounds" in report
    owner = run.folder.stat()
    assert {(p.stat().st_uid, p.stat().st_gid) for p in run.folder.iterdir()} == {(owner.st_uid, owner.st_gid)}
    assert str(owner.st_uid) == fresh.env["UID"]
    # Each with its own key, state and share of the data.
    places = {f"this replica is client {k}" for k in range(5)}
    assert places == {line.split("| ")[1] for line in said.splitlines() if "this replica is" in line}


def test_a_second_start_is_another_run_of_the_same_clients_and_more_over_http(
    fresh: Federation, first_start: tuple[str, Run]
) -> None:
    _, first = first_start
    fresh.environment["SUPERLINK"] = "superlink:9093"
    said, second = up(fresh, "--scale", "client=7")
    assert "7 clients, 2 of them new" in said
    assert said.count("connected to superlink:9093") == 7
    before = {p["client-id"] for p in first.participation}
    now = {p["client-id"] for p in second.participation}
    assert before < now
    assert len(now) == 7
    assert Record(second.folder).config["settings"]["clients"] == 7
    assert [line["joined"] for line in second.history] == [7, 7, 7]
    assert len(Record(first.folder).history) == 3


def test_the_image_holds_what_runs_and_no_more(image: str) -> None:
    def inside(command: str, *options: str) -> str:
        return docker("run", "--rm", *options, image, "sh", "-c", command).strip()

    assert inside("id -u") == "1000"
    # `uv` is not asked for: Flower depends on it.
    assert inside("for tool in gcc make git hatchling; do command -v $tool; done; true") == ""
    assert inside("find / -xdev -name '*.whl' -not -path '/usr/*' 2>/dev/null; true", "--user", "0") == ""
    kibibytes = inside("du -s /root/.cache /tmp /installer /source /home | cut -f1", "--user", "0").split()
    assert sum(map(int, kibibytes)) < 200
    found = inside(
        'python -c \'import fedappeal, importlib.util as u; print(u.find_spec("ray"), u.find_spec("tests"))\''
    )
    assert found == "None None"


def test_the_file_for_gpus_adds_to_the_clients_and_takes_nothing_away() -> None:
    files = ("-f", "docker-compose.yml", "-f", "docker-compose.gpu.yml")
    command = ["docker", "compose", "--env-file", os.devnull, *files, "config", "--format", "json"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    client = json.loads(said)["services"]["client"]
    assert client["deploy"]["replicas"] == 5
    (device,) = client["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert client["environment"]["DEVICE"] == "cuda"
    assert client["environment"]["ALLOW"] == ""
