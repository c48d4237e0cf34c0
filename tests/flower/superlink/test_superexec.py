"""What `superexec` relies on: how a SuperLink hands out tasks, and how a task's command takes its options."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec
from flwr.supercore.superexec.plugin import AutoExecPlugin

from fedappeal.flower.superlink import serverapp, superexec
from fedappeal.flower.superlink.superexec import SuperExec
from fedappeal.system import process_end
from tests.ports import free_port

TOKEN = "0123456789abcdef" * 4
flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name
TASK = f"""#!{sys.executable}
import argparse, os, pathlib, signal, sys
from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
parser = argparse.ArgumentParser()
add_args_flwr_app_common(parser)
arguments, _ = parser.parse_known_args()
command = pathlib.Path("/proc/self/cmdline").read_text().replace(chr(0), " ")
pathlib.Path(__file__).with_name("told").write_text(try_obtain_flwr_app_token(arguments) + "\\n" + command)
eval(os.environ["TASK_ENDS"])
"""


class RuntimeApi(BaseHTTPRequestHandler):
    """A SuperLink: hands out the waiting tasks, and keeps what tasks say of their end."""

    waiting: ClassVar[list[AcquireTaskResponse]] = []
    refuses: ClassVar[list[int]] = []
    said: ClassVar[list[tuple[str, str]]] = []
    beats: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        answer, status = b"", 200
        if self.path == "/v1/runtime/acquire-task":
            assert set(AcquireTaskRequest.FromString(content).supported_task_types) == set(TaskType)
            if self.refuses:
                status = self.refuses.pop()
            elif self.waiting:
                answer = self.waiting.pop().SerializeToString()
        elif self.path == "/v1/runtime/send-task-heartbeat":
            assert TOKEN in str(self.headers)
            assert SendTaskHeartbeatRequest.FromString(content) is not None
            self.beats.append(self.path)
            status = 500 if len(self.beats) == 1 else 200
        else:
            assert self.path == "/v1/runtime/push-task-output"
            assert TOKEN in str(self.headers)
            request = PushTaskOutputRequest.FromString(content)
            self.said.append((request.sub_status, request.details))
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A SuperLink that is bound, and does not listen yet."""
    monkeypatch.setattr(superexec, "ASKED_EVERY", 0.01)
    for name in ("waiting", "refuses", "said", "beats"):
        monkeypatch.setattr(RuntimeApi, name, [])
    with ThreadingHTTPServer(("127.0.0.1", 0), RuntimeApi, bind_and_activate=False) as server:
        server.server_bind()
        yield server


def serve(server: ThreadingHTTPServer) -> None:
    server.server_activate()
    Thread(target=server.serve_forever, daemon=True).start()


def superexec_of(server: ThreadingHTTPServer) -> SuperExec:
    command = flower._get_superexec_command(f"127.0.0.1:{server.server_port}", None, None, os.getpid(), False)
    return SuperExec(command, start_new_session=True)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> SuperExec:
    """A SuperExec that asks no SuperLink for tasks."""
    monkeypatch.setattr(SuperExec, "run", lambda self: None)
    return SuperExec(flower._get_superexec_command("127.0.0.1:8000", None, None, os.getpid(), False))


def until(wanted: Any) -> None:
    deadline = time.monotonic() + 60
    while not wanted() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert wanted()


@pytest.mark.skipif(sys.platform != "linux", reason="reads its command line from /proc")
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("os.kill(os.getpid(), 9)", [("failed", "its process (ServerApp) was killed by signal 9")]),
        ("sys.exit(1)", []),
    ],
)
def test_a_task_gets_its_token_out_of_sight_and_the_superlink_is_told_of_one_that_was_killed(
    ends: str, said: list[tuple[str, str]], api: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / TASK_TYPE_TO_COMMAND[TaskType.SIMULATION]
    program.write_text(TASK)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TASK_ENDS", ends)
    running = superexec_of(api)
    RuntimeApi.waiting.append(AcquireTaskResponse(task=Task(task_id=1, type=TaskType.SIMULATION), token=TOKEN))
    RuntimeApi.refuses.append(500)
    assert running.is_alive(), "it waits for the SuperLink, which starts it before it listens"
    serve(api)
    told = tmp_path / "told"
    until(lambda: told.exists() and told.read_text().count("\n"))
    token, command = told.read_text().split("\n")
    assert token == TOKEN
    assert TOKEN not in command
    assert f"--runtime-api-address 127.0.0.1:{api.server_port} --insecure --parent-pid {os.getpid()}" in command
    assert "--token-file /dev/fd/" in command
    for thread in threading.enumerate():
        if thread.name == "end of a task":
            thread.join(60)
    assert RuntimeApi.said == said
    assert running.is_alive()
    running.terminate()
    running.wait(60)
    assert not running.is_alive()
    api.shutdown()


@pytest.mark.parametrize("kind", TaskType)
@pytest.mark.parametrize("ca", [None, "ca.crt"])
@pytest.mark.parametrize("install", [False, True])
def test_a_task_is_started_as_flower_starts_it_but_for_its_token(
    kind: TaskType, ca: str | None, install: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    options: list[dict[str, Any]] = []

    def start(command: list[str], **named: Any) -> SimpleNamespace:
        commands.append(command)
        options.append(named)
        return SimpleNamespace(wait=lambda timeout=None: 0)

    monkeypatch.setattr(SuperExec, "run", lambda self: None)
    monkeypatch.setattr(superexec, "Popen", start)
    flowers = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(subprocess_executor, "subprocess", flowers)
    certificates = None if ca is None else (b"", b"", b"")
    command = flower._get_superexec_command("127.0.0.1:8000", certificates, ca, os.getpid(), install)
    SuperExec(command).start_task(kind, TOKEN)
    quiet = kind not in AutoExecPlugin.visible_output_task_types
    spec = ExecutionSpec(kind, "127.0.0.1:8000", TOKEN, ca is None, ca, install, os.getpid(), quiet, 1)
    assert subprocess_executor.SubprocessExecutor().launch(spec)
    ours, flowers_own = commands
    python = [sys.executable, "-P", "-m", process_end.__name__, str(os.getpid())]
    assert ours[:5] == python
    assert "preexec_fn" not in options[0], "code of Python's between fork and exec, beside gRPC's threads"
    assert TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[kind] == "--runtime-api-address"
    at, of_flower = ours.index("--token-file"), flowers_own.index("--token")
    assert ours[at + 1] == f"/dev/fd/{options[0]['pass_fds'][0]}"
    if kind is TaskType.SERVER_APP:
        assert ours[5:9] == [sys.executable, "-P", "-m", serverapp.__name__]
        ours[5:9], at = ["flwr-serverapp"], at - 3
    assert sorted(ours[5:at] + ours[at + 2 :]) == sorted(flowers_own[:of_flower] + flowers_own[of_flower + 2 :])
    assert [given.get("stdout") for given in options] == [subprocess.DEVNULL if quiet else None] * 2


def test_a_task_ends_with_the_superlink_that_started_it(tmp_path: Path) -> None:
    """The task holds the pipe open, so this call returns only once it has ended."""
    program = tmp_path / TASK_TYPE_TO_COMMAND[TaskType.MODEL]
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    killed = (
        "import os, signal, sys\n"
        "from fedappeal.flower.superlink.superexec import SuperExec, TaskType\n"
        "SuperExec.run = lambda self: self.start_task(TaskType.MODEL, 'secret') "
        "and os.kill(os.getpid(), signal.SIGKILL)\n"
        "SuperExec(['--runtime-api-address', '127.0.0.1:8000', '--insecure']).join()\n"
    )
    path = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-c", killed], stdout=subprocess.PIPE, timeout=300, check=False, env=path)


def test_a_superlink_that_ends_kills_its_tasks_and_is_told_nothing(
    idle: SuperExec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SuperExec, "report_killed", lambda *_: pytest.fail("nobody listens any more"))
    idle.terminate()
    idle._watch(SimpleNamespace(wait=lambda timeout=None: -9), TOKEN)  # type: ignore[arg-type]


def test_a_task_that_begins_slowly_has_its_first_heartbeats_sent_and_no_more(
    api: ThreadingHTTPServer, idle: SuperExec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superexec, "BEAT", 0.01)
    monkeypatch.setattr(superexec, "BEATS", 3)
    serve(api)
    idle._address = f"127.0.0.1:{api.server_port}"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as task:
        watching = Thread(target=idle._watch, args=(task, TOKEN))
        watching.start()
        until(lambda: len(RuntimeApi.beats) == 3)
        assert watching.is_alive()
        task.kill()
        watching.join(60)
    assert RuntimeApi.said == [("failed", "its process (ServerApp) was killed by signal 9")]
    assert len(RuntimeApi.beats) == 3


def test_that_nobody_is_there_to_be_told_raises_nothing(idle: SuperExec) -> None:
    idle._address = f"127.0.0.1:{free_port()}"
    idle.report_killed(-9, TOKEN)
