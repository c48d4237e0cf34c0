"""What bad input gets: one clear line on standard error, exit code 2, and nothing started or written."""

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict

from fedappeal.cli.main import main
from fedappeal.cli.option_groups import ResumeOptions
from fedappeal.cli.start import resume_run
from fedappeal.protocol.metric import ACCURACY
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CHECKPOINT
from fedappeal.record.reader import Record
from fedappeal.runs.launch.superlink import LocalProcesses
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import RunConfig
from fedappeal.simulation.memory import SavedMemory
from fedappeal.system.files import write_safetensors
from server.checkpoints import Checkpoint

Refused = Callable[..., str]
JOINING = "--superlink 127.0.0.1:1 --insecure"
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
        ("--requirement metric", "requirement = 'metric' is not allowed with strategy = 'maxfl'"),
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
        (
            "--server-lr 1",
            "it is a setting of a plug-in: --set maxfl.server-lr=VALUE (or fedadam.server-lr, scaffold.server-lr, ",
        ),
        ("--learning-rat 1", "Did you mean one of: '--learning-rate', '--log-format'?"),
        ("--rounds many", "invalid value for '--rounds': 'many' is not a valid integer (fedappeal local --help)"),
        ("--learning-rate -0.1", "learning-rate = -0.1 is not allowed: input should be greater than 0"),
        ("--clients-per-round 11", "clients-per-round = 11 is not allowed: at most clients = 10"),
        ("--mandatory-rounds 30", "mandatory-rounds = 30 is not allowed: at most rounds = 20"),
        ("--local-steps 0", "local-steps = 0 is not allowed where local-epochs = 0"),
        ("--partition dirichle", "partition = 'dirichle' is not allowed: input should be 'iid', 'dirichlet'"),
        ("--clients 5000", "clients = 5000 is not allowed"),
        ("--port 70000", "port = 70000 is not allowed"),
        ("--port 70000 --against maxfl", "port = 70000 is not allowed"),
        ("--against maxfl", "against = 'maxfl' is not allowed: it is the run's own strategy"),
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
        ("--share [", "share = '[' is not allowed: no array of the model is called '['"),
        ("--share *,!*", "share = '*,!*' is not allowed: no array of the model would travel"),
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


@pytest.mark.parametrize(
    "arguments",
    ["federation register nokey.pub", "federation list --run nowhere", "federation stop 1", "submit --task digit"],
)
def test_a_superlink_that_nobody_named_is_missed_first(arguments: str, refused: Refused) -> None:
    assert "superlink is missing: HOST:PORT of its Control API" in refused(*arguments.split())


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
    folder = RunPlan.of(RunConfig(rounds=2), tmp_path / "run").folder({})
    names = ("asked", "joined", "sat_out", "left", "evaluated", "bytes_up", "bytes_down", "seconds")
    line = dict.fromkeys(names, 1)
    folder.append("history.jsonl", {"round": 1, **line}, {"round": 2, **line})
    Checkpoint(1, ArrayRecord(), ArrayRecord(), RecordDict()).write(folder.path / "checkpoint.safetensors")
    went_on = Mock()
    monkeypatch.setattr(LocalProcesses, "_run_shown", went_on)
    folder.record(runtime={"kind": "local"})
    resume_run(folder.path, ResumeOptions(device="cpu"))
    assert went_on.called
    assert Record(folder.path).config["runtime"] == {
        "kind": "local",
        "data-dir": "",
        "device": "cpu",
        "transport": "grpc",
    }
    # What clients speak stays, unless an option says otherwise.
    for transport, expected in (("http", "http"), (None, "http"), ("grpc", "grpc")):
        resume_run(folder.path, ResumeOptions(device="cpu", transport=transport))  # type: ignore[arg-type]
        assert Record(folder.path).config["runtime"]["transport"] == expected
    folder.record(runtime={"kind": "local", "transport": "carrier pigeon"})
    assert "transport = 'carrier pigeon' is not allowed: grpc, http" in refused("resume", str(folder.path))
    folder.record(runtime={"kind": "local"})
    folder.event("finished", round=2, reason="")
    assert "holds a run that has finished all its 2 rounds" in refused("resume", str(folder.path))


def test_resume_of_what_is_no_run(refused: Refused) -> None:
    assert "is not the folder of a run" in refused("resume", "nowhere")
    hint = "give the path that the SuperLink knows"
    assert hint in refused("resume", "nowhere", "--superlink", "127.0.0.1:1")


def leave_after(folder: RunFolder, server_round: int) -> None:
    """Leave what a run without clients continues from, in any runtime."""
    Checkpoint(server_round, ArrayRecord(), ArrayRecord(), RecordDict()).write(folder.path / CHECKPOINT)
    no_clients: Any = SimpleNamespace(contexts={}, kept_participants=list)
    SavedMemory(folder, no_clients, no_clients, 1, ACCURACY).save(server_round)


def held_run(path: Path, kind: str, rounds: int = 2) -> str:
    """Leave the folder of a run that has done its rounds."""
    folder = RunPlan.of(RunConfig(rounds=rounds, mandatory_rounds=0), path).folder({"kind": kind})
    leave_after(folder, rounds)
    folder.event("finished", round=rounds, reason="")
    return str(path)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "simulation",
            "--port 1",
            "port = 1 is not allowed: .* 'simulation', which knows --rounds, --data-dir",
        ),
        ("simulation", "--superlink 127.0.0.1:1", "superlink = '127.0.0.1:1' is not allowed: .*'simulation'"),
        ("local", "--detach", "detach = True is not allowed: .*'local', which knows --rounds, --port, --data-dir"),
        ("local", "--root-certificates ca", "root-certificates = 'ca' is not allowed: .*'local'"),
        ("submitted", "--device cpu", "device = 'cpu' is not allowed: .*'submitted', which knows --rounds, --superl"),
        ("submitted", "--rounds 4", "superlink is missing: .* holds a run of a SuperLink"),
        ("simulation", "", r"has finished all its 2 rounds \(--rounds N: continue to N\)"),
        ("local", "", r"has finished all its 2 rounds \(--rounds N: continue to N\)"),
        ("local", "--rounds 2", "rounds = 2 is not allowed: more than the 2 that the run in .* has done"),
        ("simulation", "--rounds 1", "rounds = 1 is not allowed: more than the 2"),
        ("elsewhere", "", r"does not say how it was started \(local, simulation, submitted\)"),
    ],
)
def test_a_run_that_cannot_continue_so(
    kind: str, options: str, expected: str, refused: Refused, tmp_path: Path
) -> None:
    folder = held_run(tmp_path / "run", kind)
    before = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    assert re.search(expected, refused("resume", folder, *options.split()))
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == before


@pytest.mark.parametrize("kind", ["simulation", "local", "submitted"])
def test_a_run_that_its_strategy_ended_does_not_continue(kind: str, refused: Refused, tmp_path: Path) -> None:
    folder = RunPlan.of(RunConfig(rounds=9), tmp_path / "run").folder({"kind": kind})
    leave_after(folder, 7)
    folder.event("finished", round=7, reason="every client has left")
    where = ["--superlink", "127.0.0.1:1"] if kind == "submitted" else []
    for rounds in ([], ["--rounds", "20"]):
        line = refused("resume", str(folder.path), *where, *rounds)
        assert "has finished in round 7: every client has left; it cannot continue" in line


def test_without_its_clients_memory_a_simulated_run_does_not_continue(refused: Refused, tmp_path: Path) -> None:
    folder = held_run(tmp_path / "run", "simulation")
    how = {"mode": "sequential", "device": "cpu", "data-dir": "", "threads": 1, "resumable": False}
    RunFolder.open(Path(folder)).record(runtime={"kind": "simulation", **how})
    assert "holds a simulated run whose clients' memory was not kept" in refused("resume", folder, "--rounds", "3")


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
        (f"{JOINING} --data t.csv", "label is missing: which column of data = '"),
        (f"{JOINING} --data t.csv --label y", "t.csv' is not allowed: no such file or folder"),
        (f"{JOINING} --data t.parquet --label y --features a,y", "label = 'y' is not allowed: it is one of the"),
        (f"{JOINING} --data t.npz --label y", "t.npz': only a table has columns (.csv, .jsonl, .parquet)"),
        (f"{JOINING} --data mine:load --features a,b", "with data = 'mine:load': only a table has columns"),
        (f"{JOINING} --data mine:load", "data = 'mine:load' is not allowed: cannot be imported: ModuleNotFoundError"),
        (f"{CONNECTED} --label y", "label = 'y' is not allowed without data: it names columns of a table"),
        (f"{CONNECTED} --allow mine:X", "allow = 'mine:X' is not allowed: the name of a package"),
        (f"{CONNECTED} --page-port 8080", "page-port = 8080 is not allowed without --page"),
        (f"{CONNECTED} --page 8080 --page-port 8081", "page-port = 8081 is not allowed together with page = 8080"),
        (f"{CONNECTED} --page 70000", "page = 70000 is not allowed: 0 (the system picks one) to 65535"),
        (f"{CONNECTED} --page --page-port 70000", "page = 70000 is not allowed: 0 (the system picks one) to 65535"),
        (f"{CONNECTED} --page-port 70000 --page", "page = 70000 is not allowed: 0 (the system picks one) to 65535"),
        (f"{CONNECTED} --limits max-stps=3", "unknown setting 'max-stps'; did you mean 'max-steps'?"),
        (f"{CONNECTED} --limits few", "limits = 'few' is not allowed: KEY=VALUE separated by spaces, or 'off'"),
    ],
)
def test_a_client_with_wrong_settings(arguments: str, expected: str, refused: Refused) -> None:
    assert expected in refused("client", *arguments.split())


@pytest.mark.parametrize(
    ("lines", "options", "expected"),
    [
        (("a,b,y", "1,2,0"), "--label x", "it has no column x (its header: a, b, y)"),
        (("a,b,y", "1,2,0"), "--label y --features a,c", "it has no column c (its header: a, b, y)"),
        (("a,b,y", "1,2,0", "1,2"), "--label y", "row 2 (line 3) has 2 cells, the header 3"),
        (("a,b,y", "1,2,"), "--label y", "row 1 (line 2), column y: the cell is empty"),
    ],
)
def test_a_client_with_a_table_that_no_task_can_take(
    lines: tuple[str, ...], options: str, expected: str, refused: Refused, tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines))
    line = refused("client", *JOINING.split(), "--data", str(path), *options.split())
    assert line == f"fedappeal: data = '{path}' is not allowed: {expected}"


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        ("client --state-dir ~no-such-user/a", "state-dir"),
        ("client status --state-dir ~no-such-user/a", "state-dir"),
        (f"client {JOINING} --data ~no-such-user/a", "data"),
        (f"client {CONNECTED} --heartbeat ~no-such-user/a", "heartbeat"),
        (f"client {JOINING} --partition-id 0 --app ~no-such-user/a.fab", "app"),
        ("key ~no-such-user/a", "path"),
        ("federation register --superlink a:1 --insecure ~no-such-user/a", "key"),
        ("federation list --superlink a:1 --root-certificates ~no-such-user/a", "root-certificates"),
    ],
)
def test_a_home_of_nobody(command: str, setting: str, refused: Refused) -> None:
    line = refused(*command.split())
    assert re.match(rf"fedappeal: {setting} = '~no-such-user/a(\.fab)?' is not allowed: no user has a home", line)


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (("predict", "", "--data", "a"), "model"),
        (("predict", "a", "--data", ""), "data"),
        (("report", "a", ""), "runs"),
        (("client", "limits", "--state-dir="), "state-dir"),
        (("federation", "list", "--federation", ""), "federation"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(command: tuple[str, ...], setting: str, refused: Refused) -> None:
    assert refused(*command) == f"fedappeal: {setting} = '' is not allowed: the path of a file or folder"


def test_an_apps_arrays_are_called_as_the_command_calls_them(refused: Refused) -> None:
    line = refused("simulate", "--app", "json:loads", "--arrays", "nowhere:initial")
    assert line.startswith("fedappeal: arrays = 'nowhere:initial' cannot be imported")
    line = refused("simulate", "--app", "nowhere:app", "--arrays", "json:loads")
    assert line.startswith("fedappeal: app = 'nowhere:app' cannot be imported")


@pytest.mark.parametrize("words", ["limits", "limits --reset", "limits --reset --max-steps 5", "pause", CONNECTED])
def test_a_state_folder_that_is_none(words: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    for name in ("loop", "file"):
        line = refused("client", *words.split(), "--state-dir", str(tmp_path / name))
        assert line == f"fedappeal: state-dir = '{tmp_path / name}' is not allowed: it is no folder"


def test_limits_that_cannot_be_reset(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "limits.json").mkdir()
    line = refused("client", "limits", "--reset", "--state-dir", str(tmp_path))
    assert line == f"fedappeal: file '{tmp_path / 'limits.json'}' cannot be deleted: Is a directory"


def test_an_id_that_no_run_can_have(refused: Refused) -> None:
    line = refused("federation", "stop", str(1 << 64), "--superlink", "127.0.0.1:1", "--insecure")
    assert f"{1 << 64} is not in the range" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["client", "limits", "--max-steps", "5", "--state-dir", "dangling"],
        ["client", "status", "--state-dir", "x" * 300],
        ["federation", "list", "--federation", "x" * 300],
        ["federation", "open", "x" * 300, "--host", "a"],
    ],
)
def test_a_name_that_the_system_does_not_take(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.setattr(sys, "argv", ["fedappeal", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, arguments[-1][:9] in line or "x" * 9 in line) in ((1, True), (2, True)), line


@pytest.mark.parametrize("command", ["submit", "resume nowhere", "watch", "federation list", "federation stop 7"])
def test_a_superlink_that_is_trusted_in_two_ways(command: str, refused: Refused) -> None:
    line = refused(*command.split(), "--superlink", "127.0.0.1:1", "--insecure", "--root-certificates", "ca")
    assert line == "fedappeal: root-certificates = 'ca' is not allowed together with insecure"
