"""What bad input gets: one clear line on standard error, exit code 2, and nothing started or written."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict

from fedappeal.cli import local
from fedappeal.cli.main import main
from fedappeal.files import write_safetensors
from fedappeal.protocol.config import RunConfig
from server.checkpoint import Checkpoint
from server.run_folder import RunFolder

Refused = Callable[..., str]
CONNECTED = "--superlink 127.0.0.1:1 --insecure --partition-id 0"
"""Options with which a client would start."""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run the command in an empty folder; check that it was refused there, and return its one line."""
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*arguments: str) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["fedappeal", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == 2, printed
        assert not list(folder.iterdir()), "something was written"
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        return line

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--strategy maxfk", "(did you mean 'maxfl'?)"),
        (
            "--strategy mine:Mine",
            "strategy = 'mine:Mine' cannot be imported: ModuleNotFoundError: No module named 'mine'",
        ),
        ("--strategy pathlib:Path", "it is no subclass of strategies.rounds.strategy.Strategy"),
        ("--task digit", "task = 'digit' is not allowed: digits, fmnist"),
        ("--task digit", "(did you mean 'digits'?)"),
        ("--local-rule sdg", "(did you mean 'sgd'?)"),
        ("--local-rule prox --strategy scaffold", "local-rule = 'prox' is not allowed with strategy = 'scaffold'"),
        ("--requirement soloo", "(did you mean 'solo'?)"),
        ("--requirement accuracy", "requirement = 'accuracy' is not allowed with strategy = 'maxfl'"),
        ("--participation apeal", "(did you mean 'appeal'?)"),
        ("--participation appeal=0.5,always=0.4", "its shares add up to 0.9, not to 1"),
        ("--participation appeal=much", "with shares in [0, 1], each name once"),
        ("--set server-lr=1", "set = 'server-lr=1' is not allowed: NAME.KEY=VALUE"),
        ("--set learning-rate=1", "'learning-rate' is a general setting with an option --learning-rate"),
        ("--set maxfl.server-lr", "set = 'maxfl.server-lr' is not allowed: NAME.KEY=VALUE"),
        ("--set maxfl.server-lt=1", "unknown setting 'maxfl.server-lt'; did you mean 'maxfl.server-lr'?"),
        ("--set maxfl.server-lr=fast", "maxfl.server-lr = 'fast' is not allowed: input should be a valid number"),
        ("--set maxfl.server-lr=0", "maxfl.server-lr = 0 is not allowed: input should be greater than 0"),
        ("--set maxfk.server-lr=1", "unknown plug-in 'maxfk' in the settings; did you mean 'maxfl'?"),
        ("--set fedavg.server-lr=1 --strategy fedavg", "unknown setting 'fedavg.server-lr'"),
        ("--set scaffold.server-lr=-1", "scaffold.server-lr = -1 is not allowed"),
        ("--set", "option '--set' requires an argument"),
        ("--server-lr 1", "it is a setting of a plug-in: --set maxfl.server-lr=VALUE (or scaffold.server-lr)"),
        ("--learning-rat 1", "did you mean '--learning-rate'?"),
        ("--rounds many", "invalid value for '--rounds': 'many' is not a valid integer (fedappeal local --help)"),
        ("--learning-rate -0.1", "learning-rate = -0.1 is not allowed: input should be greater than 0"),
        ("--clients-per-round 11", "clients-per-round = 11 is not allowed: at most clients = 10"),
        ("--mandatory-rounds 30", "mandatory-rounds = 30 is not allowed: at most rounds = 20"),
        ("--local-steps 0", "local-steps = 0 is not allowed where local-epochs = 0"),
        ("--partition dirichle", "partition = 'dirichle' is not allowed: input should be 'iid', 'dirichlet'"),
        ("--clients 5000", "clients = 5000 is not allowed"),
        ("--port 70000", "port = 70000 is not allowed"),
    ],
)
def test_one_clear_line(arguments: str, expected: str, refused: Refused) -> None:
    assert expected in refused("local", *arguments.split())


@pytest.mark.parametrize("command", ["local", "simulate", "simulate --sweep seed=0,1"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--initial-model nowhere.safetensors", "nowhere.safetensors' is not allowed: no such file"),
        ("--initial-model {other}", "it does not hold the model of task 'digits' (model = mlp)"),
        ("--initial-model {file}", "cannot be read"),
        ("--device cuda:99", "device = 'cuda:99' is not allowed"),
        ("--device tpu", "device = 'tpu' is not allowed"),
        ("--out {file}", "is not allowed: it is not a folder"),
        ("--out {file}/run", "is not allowed: it cannot be written to (Not a directory)"),
        ("--out /proc/none/run", "is not allowed: it cannot be written to (No such file or directory)"),
    ],
)
def test_what_this_machine_lacks_is_found_before_the_heading(
    command: str, arguments: str, expected: str, refused: Refused, tmp_path: Path
) -> None:
    other, file = tmp_path / "other.safetensors", tmp_path / "file"
    write_safetensors(other, {"0.weight": np.zeros((2, 2), np.float32)}, {})
    file.write_text("words")
    given = f"{command} --model mlp {arguments}".format(other=other, file=file)
    assert expected in refused(*given.split())


@pytest.mark.parametrize("model", ["", "--model logistic"])
def test_submit_checks_an_initial_model_that_it_can_see(model: str, refused: Refused, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    write_safetensors(other, {"0.weight": np.zeros((2, 2), np.float32)}, {})
    given = f"submit --superlink 127.0.0.1:1 --initial-model {other} {model}"
    assert "it does not hold the model of task 'digits'" in refused(*given.split())


def test_a_port_in_use(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port = {port} is not allowed: Address already in use" in refused("local", "--port", str(port))


def test_a_folder_that_already_holds_a_run(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    line = refused("local", "--out", str(tmp_path / "old"))
    assert "the folder already holds a run" in line


def test_a_run_is_over_once_it_has_said_so_and_not_before(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the last round's line, before the model was written, must leave a run that can be finished."""
    folder = RunFolder.create(tmp_path / "run", RunConfig(rounds=2))
    folder.append("history.jsonl", {"round": 1}, {"round": 2})
    Checkpoint(1, ArrayRecord(), ArrayRecord(), RecordDict()).write(folder.path / "checkpoint.safetensors")
    went_on = Mock()
    monkeypatch.setattr(local, "_run", went_on)
    local.resume_local(folder.path, port=0, data_dir="", device="cpu")
    assert went_on.called
    folder.event("finished", round=2, reason="")
    assert "holds a run that has finished all its 2 rounds" in refused("resume", str(folder.path))


def test_resume_of_what_is_no_run(refused: Refused) -> None:
    assert "is not the folder of a run" in refused("resume", "nowhere")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "superlink = '' is not allowed"),
        ("--superlink nowhere", "superlink = 'nowhere' is not allowed"),
        ("--superlink 127.0.0.1:1 --insecure", "partition-id = -1 is not allowed"),
        (
            "--superlink 127.0.0.1:1 --insecure --partition-id 0 --key k",
            "key = 'k' is not allowed together with insecure",
        ),
        (
            "--superlink 127.0.0.1:1 --partition-id 0 --root-certificates ca",
            "root-certificates = 'ca' is not allowed: no such file",
        ),
        ("status --state-dir nowhere", "no client has kept state there"),
        (f"{CONNECTED} --participation defekt", "(did you mean 'defect'?)"),
        (f"{CONNECTED} --participation mine:X", "participation = 'mine:X' cannot be imported"),
        (
            f"{CONNECTED} --set defect.leave-below=-1",
            "defect.leave-below = -1 is not allowed: input should be greater",
        ),
        (f"{CONNECTED} --set defect.leave=1", "unknown setting 'defect.leave'; did you mean 'defect.leave-below'?"),
        (f"{CONNECTED} --set defekt.leave-below=1", "'defekt' is no policy"),
        (f"{CONNECTED} --set leave-below=1", "set = 'leave-below=1' is not allowed: NAME.KEY=VALUE"),
        (f"{CONNECTED} --allow mine:X", "allow = 'mine:X' is not allowed: the name of a package"),
    ],
)
def test_a_client_with_wrong_settings(arguments: str, expected: str, refused: Refused) -> None:
    assert expected in refused("client", *arguments.split())


def test_a_superlink_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        sys.executable,
        "-m",
        "fedappeal.cli.main",
        "client",
        "--superlink",
        address,
        "--insecure",
        "--partition-id",
        "0",
        "--connect-timeout",
        "1",
    ]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path / "state")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert address in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
