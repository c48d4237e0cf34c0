"""An owner's app runs in a process of its own: what it may not do it cannot, and it stops nothing but itself."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import psutil
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from client.limits.limits import LimitReached, Limits
from client.outcome import JOINED
from client.process.app_process import AppProcess, receive, send
from client.process.owners_app import clients_of
from client.process.sandbox import can_confine
from client.settings import AppSettings, Connection, NodeSettings
from client.volunteer import AppClients
from fedappeal.flower.messages import be_sender
from fedappeal.settings.config import ConfigError
from strategies.maxfl import APPEAL_WEIGHT

pytestmark = pytest.mark.skipif(bool(can_confine()), reason="this system cannot confine a process")

APP = """
import os, socket, subprocess, sys, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

def tried(act):
    try:
        act()
    except OSError as error:
        return -1
    return 1

def reply(message, told, by=0.0):
    sent = message.content["arrays"]
    arrays = ArrayRecord({k: Array(a.numpy() + by) for k, a in sent.items()})
    metrics = MetricRecord({"num-examples": 3, "loss": float(abs(2.0 - sent["w"].numpy()[0])), **told})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

@app.train()
def train(message: Message, context: Context) -> Message:
    what, place = str(message.content["config"].get("what", "")), context.node_config
    told = {}
    if what == "look":
        told["data"] = tried(lambda: Path(str(place["data"])).read_text())
        told["state"] = tried(lambda: os.listdir(str(place["state"])))
        told["home"] = tried(lambda: os.listdir(os.path.expanduser("~root")))
        told["writes"] = tried(lambda: Path(str(place["data"])).write_text("mine"))
        told["network"] = tried(lambda: socket.create_connection(("127.0.0.1", int(place["port"])), 2))
        told["listener"] = tried(lambda: socket.socket(socket.AF_UNIX).connect(str(place["listener"])))
        told["pair"] = tried(socket.socketpair)
        told["signal"] = tried(lambda: os.kill(int(place["client"]), 0))
        told["own"] = tried(lambda: Path("mine").write_text("mine"))
        told["threads"] = int(os.environ.get("OMP_NUM_THREADS", 0))
        told["secret"] = -1 if "SECRET" not in os.environ else 1
    if what == "sleep":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        time.sleep(600)
    if what == "exit":
        os._exit(7)
    if what == "flood":
        for number in range(100_000):
            print("line", number)
    if what == "keep":
        kept = [a.numpy() for a in context.state["kept"].values()] if "kept" in context.state else [np.ones(10**6)]
        context.state["kept"] = ArrayRecord([np.concatenate([*kept, *kept])])
    if what == "raw":
        for fd in range(3, 4096):
            try:
                os.write(fd, b"x" * 64)
            except OSError:
                pass
    if what == "large":
        told["x" * 2_000_000] = 1.0
    if what == "fill":
        for number in range(1000):
            Path(f"fill{number}").write_bytes(bytes(1 << 20))
    if what == "memory":
        bytearray(4 * 10**9)
    if what == "many":
        hold = "import time; x = b'x' * 3 * 10**8; time.sleep(600)"
        for number in range(5):
            subprocess.Popen([sys.executable, "-c", hold], start_new_session=True)
        time.sleep(600)
    context.state["seen"] = ConfigRecord({"calls": 1})
    return reply(message, {**told, "appeal-weight": 99.0, "invented": 5.0}, by=100.0 if what == "far" else 0.5)

@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return reply(message, {"invented": 5.0})
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "owners_app.py").write_text(textwrap.dedent(APP))
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def process(code: Path, tmp_path: Path) -> Iterator[AppProcess]:
    (tmp_path / "data").write_text("examples")
    one = AppProcess("owners_app:app", readable=(str(tmp_path / "data"),))
    yield one
    one.end()


def message(kind: str = "train", ttl: float = 60, **config: object) -> Message:
    be_sender(run_id=7, node_id=1, task_id=9)
    arrays = ArrayRecord({"w": Array(np.array([1.0]))})
    told = ConfigRecord(dict(config))  # type: ignore[arg-type]
    return Message(RecordDict({"arrays": arrays, "config": told}), 3, kind, ttl=ttl, group_id="1")


def context(**node: object) -> Context:
    return Context(7, 3, dict(node), RecordDict(), {"lr": 0.5})  # type: ignore[arg-type]


def test_it_sees_its_data_and_nothing_else(
    process: AppProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET", "the client's")
    (tmp_path / "state").mkdir()
    listener = str(tmp_path / "listener")  # as a container's or a desktop's daemon has one
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as of_file:
        of_file.bind(listener)
        of_file.listen()
        place = context(
            data=str(tmp_path / "data"),
            state=str(tmp_path / "state"),
            port=server.getsockname()[1],
            client=os.getpid(),
            listener=listener,
        )
        told = process(message(what="look"), place).content["metrics"]
    allowed = {"data": 1, "own": 1, "pair": 1}
    refused = dict.fromkeys(("state", "home", "writes", "network", "listener", "signal", "secret"), -1)
    assert {key: told[key] for key in (*allowed, *refused)} == {**allowed, **refused}
    assert told["threads"] == 3, "on how many cores it calculates is its owner's to say"
    assert (tmp_path / "data").read_text() == "examples"
    assert place.state["seen"]["calls"] == 1, "its own context lasts"


def test_one_that_never_returns_is_ended_with_all_that_it_started(process: AppProcess) -> None:
    process(message(), context())
    assert process.pid is not None
    first = psutil.Process(process.pid)
    before = [first, *first.children(recursive=True)]
    assert len(before) == 2, "the process, and the first of its namespace"
    with pytest.raises(ConfigError, match="the app's process did not answer in time, and was ended"):
        process(message(what="sleep", ttl=3), context())
    _, alive = psutil.wait_procs(before, timeout=10)
    assert not alive
    assert not [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(600)" in " ".join(p.info["cmdline"] or ())]
    assert process(message(), context()).content["metrics"]["num-examples"] == 3, "the next message starts it anew"


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("fill", r"the app failed: OSError: \[Errno 28\] No space left on device"),
        ("exit", r"the app's process ended \(exit code 7\)"),
        ("large", "the app's process answered what is no reply"),
        ("raw", "the app's process answered what is no reply"),
    ],
)
def test_what_is_no_reply_is_one_line_and_the_next_message_is_answered(
    process: AppProcess, what: str, line: str
) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        process(message(what=what), context())
    assert "\n" not in str(error.value)
    assert process(message(), context()).has_content()


def test_memory_beyond_the_owners_limit_is_refused(code: Path) -> None:
    process = AppProcess("owners_app:app", memory=2 * 10**9)
    try:
        with pytest.raises(ConfigError, match="the app failed: MemoryError"):
            process(message(what="memory"), context())
    finally:
        process.end()


def test_memory_of_all_its_processes_is_bounded_and_all_are_ended(code: Path) -> None:
    """Each alone stays below what the kernel allows one."""
    process = AppProcess("owners_app:app", memory=10**9)
    try:
        pid = process._running().pid
        assert process(message(), context()).has_content(), "one alone has room"
        family = psutil.Process(pid).children(recursive=True)
        with pytest.raises(
            LimitReached, match="and what it started take more than this client's max-memory = 1000 MB"
        ):
            process(message(what="many"), context())
        psutil.wait_procs(family, timeout=30)
        assert not any(one.is_running() for one in family)
        assert process(message(), context()).has_content(), "the next message finds it anew"
    finally:
        process.end()


def test_what_it_keeps_cannot_grow_without_bound(process: AppProcess) -> None:
    place = context()
    for _ in range(2):  # 16 MB, then twice as much, beside a model of one number
        process(message(what="keep"), place)
    process(message(what="keep"), place)
    with pytest.raises(ConfigError, match="the app's process answered what is no reply"):
        process(message(what="keep"), place)
    kept = place.state["kept"]
    assert isinstance(kept, ArrayRecord)
    assert sum(len(array.data) for array in kept.values()) <= 65 << 20


def test_a_home_among_what_the_app_reads_is_refused(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.home()))
    with pytest.raises(ConfigError, match="which has your home in it"):
        AppProcess("owners_app:app").check()


def test_a_flood_of_output_is_cut(process: AppProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="fedappeal.client"):
        assert process(message(what="flood"), context()).has_content()
    assert 0 < sum(message.startswith("app: line") for message in caplog.messages) <= 200


def test_a_state_folder_below_what_the_app_reads_is_refused(code: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which the app can read: move it"):
        AppProcess("owners_app:app", readable=(str(tmp_path),), private=(str(tmp_path / "state"),)).check()


def clients(tmp_path: Path, **settings: object) -> tuple[AppClients, NodeSettings]:
    (tmp_path / "data").write_text("examples")
    app = AppSettings.parse({"app": "owners_app:app", **{k.replace("_", "-"): v for k, v in settings.items()}})
    node = {"data": str(tmp_path / "data"), "label": "", "state-dir": str(tmp_path / "state"), "clipping-norm": 2.0}
    owner = NodeSettings.parse({**node, "client-id": "mine", "participation": "always", "allow": ""})
    connection = Connection.parse({"superlink": "h:1", "insecure": True})
    return clients_of(app, owner, connection, Limits())[0], owner


@pytest.mark.parametrize(("settings", "told"), [({}, False), ({"tell": "invented"}, True)])
def test_its_update_is_clipped_its_claims_are_not_ours_and_what_it_invents_stays_here(
    code: Path, tmp_path: Path, settings: dict[str, object], told: bool
) -> None:
    answer, owner = clients(tmp_path, **settings)
    place = Context(7, 3, owner.as_config(), RecordDict(), {})
    names = {"strategy": "maxfl", "mandatory": 0, "server-round": 1, "what": "far"}
    try:
        outcome = answer(message(**names), place)
    finally:
        answer.app.end()
    reply = outcome.reply(message()).content
    assert outcome.what == JOINED
    assert reply["arrays"]["w"].numpy() == pytest.approx([3.0]), "an update of 100, clipped to 2"
    metrics = reply["metrics"]
    assert isinstance(metrics, MetricRecord)
    assert metrics[APPEAL_WEIGHT] <= 0.25
    assert ("invented" in metrics) == told


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("train", {}, {"num-examples"}),
        ("train", {"tell": "invented"}, {"num-examples", "invented"}),
        ("evaluate", {}, {"num-examples", "loss"}),
        ("evaluate", {"tell": "invented"}, {"num-examples", "loss", "invented"}),
    ],
)
def test_a_server_that_asks_as_a_stock_strategy_is_told_no_more(
    code: Path, tmp_path: Path, kind: str, settings: dict[str, object], told: set[str]
) -> None:
    answer, owner = clients(tmp_path, **settings)
    place = Context(7, 3, owner.as_config(), RecordDict(), {})
    try:
        reply = answer(message(kind), place).reply(message()).content
        with pytest.raises(ConfigError, match=r"message-type = 'query\.secrets' is not allowed"):
            answer(message("query.secrets"), place)
    finally:
        answer.app.end()
    assert set(reply) == ({"arrays", "metrics"} if kind == "train" else {"metrics"})
    assert set(reply["metrics"]) == told


def test_the_pipe_carries_what_records_hold() -> None:
    arrays = ArrayRecord({"a": Array(np.arange(3.0)), "b": Array(np.array(7, np.int8))})
    config = ConfigRecord({"t": "x", "b": b"\x00\xff", "l": [1, 2], "f": 0.1, "yes": True})
    content = RecordDict({"arrays": arrays, "config": config, "m": MetricRecord({"n": float("nan"), "i": 3})})
    ours, theirs = Pipe()
    send(ours, {"kind": "train"}, content=content)
    values, records = receive(theirs)
    again = records["content"]
    assert values == {"kind": "train"}
    assert dict(again["config"]) == dict(config)
    assert [(k, v.dtype, v.shape, v.data) for k, v in again["arrays"].items()] == [
        (k, v.dtype, v.shape, v.data) for k, v in arrays.items()
    ]
    assert again["m"]["i"] == 3
    assert np.isnan(again["m"]["n"])


@pytest.mark.parametrize(
    "head",
    [b"", b"{}", b"[]", b'{"records": 3}', b'{"records": {"content": {"a": {"kind": "array"}}}}', b"[" * 100_000],
)
def test_what_is_no_reply_is_refused(head: bytes) -> None:
    ours, theirs = Pipe()
    ours.send_bytes(head)
    ours.send_bytes(b"xx")
    with pytest.raises(ValueError):
        receive(theirs)


@pytest.mark.parametrize("shape", [[1], [float("inf")]])
def test_arrays_that_are_more_than_may_be_are_refused_before_they_are_read(shape: list[float]) -> None:
    arrays = [[f"a{place}", "u1", shape, "numpy.ndarray"] for place in range(2)]
    ours, theirs = Pipe()
    ours.send_bytes(json.dumps({"records": {"content": {"a": {"kind": "array", "arrays": arrays}}}}).encode())
    for part in (b"x", b"xxx"):
        ours.send_bytes(part)
    with pytest.raises(ValueError):
        receive(theirs, 1000, 3)


@pytest.mark.parametrize("replies", [True, False])
def test_it_ends_in_silence_where_the_client_ends_before_it_reads_a_reply(replies: bool) -> None:
    ours, theirs = Pipe()
    words = [sys.executable, "-P", "-m", "client.process.app_process", "none:app", str(theirs.fileno())]
    with subprocess.Popen(words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        theirs.close()
        send(ours, {}, state=RecordDict())
        assert not replies or ours.poll(60), "it answered that it failed"
        ours.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0
    assert b"Connection" not in errors
    assert b"BrokenPipe" not in errors


def test_what_ends_within_a_part_has_ended() -> None:
    ours, theirs = Pipe()
    os.write(ours.fileno(), (100).to_bytes(4, "big") + b"x")
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs)
