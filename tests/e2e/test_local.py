"""`fedappeal local` with real client processes over gRPC: the whole run, an interrupt, a kill and a resume."""

import json
import re
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from client.state.store import DiskStore
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors
from tests.e2e.conftest import BIN, Marked, each

pytestmark = pytest.mark.e2e
FEDAPPEAL = str(BIN / "fedappeal")


def wait_for_rounds(folder: Path, rounds: int, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while len(Record(folder).history) < rounds:
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)


def end_all(marked: Marked) -> None:
    each(marked.alive(), psutil.Process.kill)
    deadline = time.monotonic() + 240
    while marked.alive():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("transport", [pytest.param("grpc", marks=pytest.mark.grpc), "http"])
def test_a_local_federation_of_real_processes(
    marked: Marked, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, url in (
        ("http", "http://127.0.0.1:9"),
        ("https", "http://127.0.0.1:9"),
        ("all", "socks5://127.0.0.1:9"),
    ):
        monkeypatch.setenv(f"{kind}_proxy", url)  # dead, and never for loopback
    folder = tmp_path / "run"
    options = "--clients 3 --unseen-clients 1 --rounds 3 --mandatory-rounds 1 --on-empty-round keep --transport"
    done = marked.run(FEDAPPEAL, "local", *options.split(), transport, "--out", str(folder), warm=True)
    assert done.returncode == 0, done.stdout + done.stderr

    rounds = Record(folder).history
    assert [r["round"] for r in rounds] == [1, 2, 3]
    assert rounds[0]["joined"] == 3
    # One round is not enough to appeal to anyone: all sit out, and what they upload is small.
    assert [r["sat_out"] for r in rounds[1:]] == [3, 3]
    for r in rounds:
        assert r["asked"] == 3
        assert r["evaluated"] == r["expected"] == 4
        assert 0 <= r["unseen_accuracy"] <= 1
    assert rounds[1]["bytes_up"] / 7 < 2048
    model_bytes = 4 * (64 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10)
    assert 3 * model_bytes < rounds[0]["bytes_up"] < 3 * model_bytes + 7 * 2048
    assert rounds[1]["accuracy"] == rounds[0]["accuracy"], "no client joined: the model stays"

    config = Record(folder).config
    assert config["settings"]["seed"] == 0
    assert {"flwr", "torch", "python"} <= set(config["versions"])
    arrays, _ = read_safetensors(folder / "model.safetensors")
    assert {a.dtype for a in arrays.values()} == {np.dtype(np.float32)}
    assert sum(a.size for a in arrays.values()) * 4 == model_bytes
    for i in range(4):
        preferred = DiskStore(folder / "clients" / f"{i:04d}").read("preferred")
        assert preferred is not None
        assert preferred.values["which"] in ("global", "solo")
        assert set(preferred.arrays) == set(arrays)
    assert str(folder) in done.stdout
    assert "GM-Appeal" in done.stdout


def test_a_run_killed_in_round_7_is_resumed_as_if_nothing_had_happened(marked: Marked, tmp_path: Path) -> None:
    # A model without rectifiers, at whose kinks the order in which replies are added up can change a step.
    federation = "--model logistic --clients 4 --clients-per-round 2 --mandatory-rounds 6 --local-steps 20"
    options = [*federation.split(), "--seed", "3"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = marked.run(FEDAPPEAL, "local", *options, "--rounds", "11", "--out", str(whole), warm=True)
    assert done.returncode == 0, done.stdout + done.stderr

    short = ("--rounds", "10", "--out", str(killed))
    marked.start(FEDAPPEAL, "local", *options, *short, log=tmp_path / "killed.log", warm=True)
    wait_for_rounds(killed, 1)
    processes = marked.alive()  # before round 6: the search takes a while, and the run goes on
    assert len(processes) == 8, "the command, its SuperLink, executor and ServerApp, clients and their parent"
    wait_for_rounds(killed, 6)
    each(processes, psutil.Process.kill)
    end_all(marked)
    assert 6 <= len(Record(killed).history) < 10
    done = marked.run(FEDAPPEAL, "resume", str(killed), "--rounds", "11", warm=True)
    assert done.returncode == 0, done.stdout + done.stderr

    assert Record(killed).decisions == Record(whole).decisions
    assert [r["round"] for r in Record(killed).history] == list(range(1, 12))
    ours, _ = read_safetensors(killed / "model.safetensors")
    theirs, _ = read_safetensors(whole / "model.safetensors")
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5)

    shown = [line.split()[1] for line in done.stdout.splitlines() if line[:1] in ("●", "○", "·")]
    after = int(re.findall("continued after round ([0-9]+)", done.stdout)[0])
    assert [int(number.rstrip("*")) for number in shown] == list(range(after + 1, 12)), "only rounds that exist"
    began = [e["round"] for e in Record(killed).events if e["event"] == "round"]
    assert began == list(range(1, 12))
    assert [line["round"] for line in Record(killed).measurements] == list(range(1, 12))
    assert not (killed / "requirements.jsonl").exists(), "a deployed server does not know any requirement"
    record = Record(killed).config
    assert (record["settings"]["rounds"], record["settings"]["schedule-rounds"]) == (11, 10)
    assert record["runtime"] == {"kind": "local", "data-dir": "", "device": "auto", "transport": "grpc"}


def test_a_killed_serverapp_ends_the_command_with_the_command_that_continues(marked: Marked, tmp_path: Path) -> None:
    folder, log, code = tmp_path / "run", tmp_path / "log", tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text('from strategies import FedAvg\n\n\nclass Mine(FedAvg):\n    """FedAvg."""\n')
    options = ("--strategy", "mine:Mine", "--clients", "2", "--rounds", "100000", "--out", str(folder))
    run = marked.start(FEDAPPEAL, "local", *options, log=log, cwd=code, warm=True)
    wait_for_rounds(folder, 2)
    [server_app] = [process for process in marked.alive() if process.name() == "serverapp"]
    server_app.kill()
    killed = time.monotonic()
    assert run.wait(30) == 1, "the promise is 10 s"
    print(f"the command ended {time.monotonic() - killed:.1f} s after its ServerApp")
    assert not marked.alive()
    [line] = [line for line in log.read_text().splitlines() if "the run failed" in line]
    assert line.startswith("fedappeal: the run failed: its process (ServerApp) was killed by signal 9 (logs: ")
    assert line.endswith(f"; continue with: fedappeal resume {folder} --allow mine --allow .")
    done = len(Record(folder).history)
    command = line.partition("continue with: ")[2].split()[1:]
    again = marked.run(FEDAPPEAL, *command, "--rounds", str(done + 1), cwd=code, warm=True)
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.parametrize("after", ["start", "round 1"])
def test_ctrl_c_ends_every_process_and_leaves_a_readable_folder(marked: Marked, tmp_path: Path, after: str) -> None:
    folder = tmp_path / "run"
    options = ("--clients", "2", "--out", str(folder))
    run = marked.start(FEDAPPEAL, "local", *options, log=tmp_path / "log", warm=after != "start")
    if after == "start":
        deadline = time.monotonic() + 240
        while not (folder / "config.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.5)
    else:
        wait_for_rounds(folder, 1)
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 130
    assert not marked.alive()
    assert json.loads((folder / "config.json").read_text())["settings"]["clients"] == 2
    assert isinstance(Record(folder).history, list)
    assert f"fedappeal resume {folder}" in (tmp_path / "log").read_text().replace("\n", "")
