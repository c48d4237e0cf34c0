"""Promise: SIGTERM and SIGHUP end a run cleanly in each of its stages; no finished round and no process is left."""

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from fedappeal.record.reader import Record
from tests import warm
from tests.hostile.struck import FOLDER, SITE, STAGES, Strike
from tests.soak.kills import check_tidy, processes_with

ROOT = Path(__file__).resolve().parents[2]
ALL = "FEDAPPEAL_ALL_FAULTS"
ROUNDS, CLIENTS = 4, 2
SMALL = (
    f"--task digits --model logistic --strategy maxfl --clients {CLIENTS} --rounds {ROUNDS} --participation always"
)
GONE_WITHIN = 10.0
TERM, HUP = signal.SIGTERM, signal.SIGHUP
COMMAND, SUPERLINK = "fedappeal.cli.main", "fedappeal.federation.own_superlink"
SAMPLE = [
    *(("simulate", COMMAND, stage, number) for stage, number in zip(STAGES, (TERM, HUP, TERM, HUP), strict=True)),
    *(("local", COMMAND, stage, number) for stage, number in zip(STAGES[:3], (HUP, TERM, HUP), strict=True)),
    ("local", SUPERLINK, "checkpoint", TERM),
]
KINDS = (("simulate", COMMAND), ("local", COMMAND), ("local", SUPERLINK))
EVERY = [(*kind, stage, number) for kind, stage, number in product(KINDS, STAGES, (TERM, HUP))]


def run_struck(arguments: list[str], strike: Strike, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that starts fresh processes, which read `SITE`; one of them sends itself a signal."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    return subprocess.run(
        [sys.executable, "-m", COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, **strike.environment(), "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(("kind", "target", "stage", "number"), EVERY if os.environ.get(ALL) else SAMPLE)
def test_a_signal_ends_the_run_and_resume_goes_on(
    kind: str, target: str, stage: str, number: int, tmp_path: Path
) -> None:
    path, struck = tmp_path / "run", tmp_path / "struck"
    struck.mkdir()
    strike = Strike(stage, number, target, str(struck))
    ended = run_struck([kind, *SMALL.split(), "--page", "0", "--out", str(path)], strike, tmp_path)
    assert strike.sent, ended.stderr
    until = time.monotonic() + GONE_WITHIN
    while alive := processes_with(f"{FOLDER}={struck}"):
        assert time.monotonic() < until, alive
        time.sleep(0.02)
    said = ended.stderr.splitlines()
    if target == SUPERLINK:
        assert (ended.returncode, len(said)) == (1, 1), said
    else:
        assert ended.returncode == 130
        kept_or_ended = "finished rounds are kept" if kind == "simulate" else "processes have ended"
        assert said[-1].startswith(f"interrupted; all {kept_or_ended}"), said
        assert Record(path).events[-1]["event"] == "interrupted"
        assert "Traceback" not in ended.stderr
    recorded = [line["round"] for line in Record(path).history]
    kept = len(recorded) - (kind == "local" and stage == "checkpoint")  # that round's checkpoint was not yet there
    assert kept == {"query": 0, "train": 1, "evaluate": 1, "checkpoint": 1 if kind == "local" else 2}[stage]

    resume = [sys.executable, "-m", COMMAND, "resume", str(path)]
    again = warm.run(resume, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr
    (resumption,) = Record(path).config.get("resumptions", [{"from-round": 0}])
    assert resumption["from-round"] == kept
    history = Record(path).history
    assert [(line["round"], line["joined"], line["failed"]) for line in history] == [
        (number, CLIENTS, 0) for number in range(1, ROUNDS + 1)
    ]
    check_tidy(path)
