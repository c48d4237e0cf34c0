"""What `superexec` relies on: how Flower's SuperExec starts a task, and how a task reads its token."""

import inspect
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec

from fedappeal.flower.superlink import serverapp, superexec
from fedappeal.flower.superlink.superexec import SuperExec
from fedappeal.system import process_end

TOKEN = "0123456789abcdef" * 4
flower: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of the same name
ADDRESS = "127.0.0.1:8000"
TASK = f"""#!{sys.executable}
import argparse, pathlib, sys
from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
parser = argparse.ArgumentParser()
add_args_flwr_app_common(parser)
arguments, _ = parser.parse_known_args()
command = pathlib.Path("/proc/self/cmdline").read_text().replace(chr(0), " ")
pathlib.Path(__file__).with_name("told").write_text(try_obtain_flwr_app_token(arguments) + "\\n" + command)
"""


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> SuperExec:
    """A SuperExec that asks no SuperLink for tasks."""
    monkeypatch.setattr(SuperExec, "run", lambda self: None)
    return SuperExec(["flower-superexec"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads its command line from /proc")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_task_gets_its_token_and_its_command_line_does_not_say_it(
    quiet: bool, idle: SuperExec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / TASK_TYPE_TO_COMMAND[TaskType.SIMULATION]
    program.write_text(TASK)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    started: list[subprocess.Popen[bytes]] = []

    def start(*given: Any, **named: Any) -> None:
        started.append(idle.start_task(*given, **named))

    flowers = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(subprocess_executor, "subprocess", flowers)
    spec = ExecutionSpec(TaskType.SIMULATION, ADDRESS, TOKEN, True, None, False, None, quiet, 1)
    assert subprocess_executor.SubprocessExecutor().launch(spec)
    assert started[0].wait(60) == 0
    token, command = (tmp_path / "told").read_text().split("\n")
    assert token == TOKEN
    assert TOKEN not in command
    assert f"{ADDRESS} --token-file /dev/fd/" in command
    assert command.rstrip().endswith("--insecure")


def test_a_serverapp_is_started_without_what_only_a_superlink_uses(
    idle: SuperExec, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], **options: Any) -> SimpleNamespace:
        assert "preexec_fn" not in options, "code of Python's between fork and exec, beside gRPC's threads"
        commands.append(command)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(superexec, "Popen", start)
    monkeypatch.setattr(subprocess_executor, "subprocess", SimpleNamespace(Popen=idle.start_task, DEVNULL=None))
    spec = ExecutionSpec(TaskType.SERVER_APP, ADDRESS, TOKEN, True, None, False, 7, True, 1)
    assert subprocess_executor.SubprocessExecutor().launch(spec)
    ((*program, option, address, token_file, _, insecure, parent, pid),) = commands
    python = [sys.executable, "-P", "-m"]
    assert program == [*python, process_end.__name__, str(os.getpid()), *python, serverapp.__name__]
    assert (option, address, token_file) == ("--runtime-api-address", ADDRESS, "--token-file")
    assert (insecure, parent, pid) == ("--insecure", "--parent-pid", "7")


def test_a_task_ends_with_the_superlink_that_started_it() -> None:
    """The task holds the pipe open, so this call returns only once it has ended."""
    killed = (
        "import os, signal, sys\n"
        "from fedappeal.flower.superlink.superexec import SuperExec\n"
        "SuperExec.run = lambda self: self.start_task([sys.executable, '-c', 'import time; time.sleep(600)', "
        "'--token', 'secret']) and os.kill(os.getpid(), signal.SIGKILL)\n"
        "SuperExec([]).join()\n"
    )
    subprocess.run([sys.executable, "-c", killed], stdout=subprocess.PIPE, timeout=60, check=False)


class RuntimeApi(BaseHTTPRequestHandler):
    """Keeps what tasks say of their end."""

    said: ClassVar[list[tuple[str, str, str]]] = []

    def do_POST(self) -> None:
        request = PushTaskOutputRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        assert TOKEN in str(self.headers)
        self.said.append((self.path.rpartition("/")[2], request.sub_status, request.details))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.mark.parametrize(("end", "reports"), [("os.kill(os.getpid(), 9)", 1), ("sys.exit(1)", 0)])
@pytest.mark.parametrize("ended", [False, True])
def test_the_superlink_is_told_of_a_task_that_was_killed(
    end: str, reports: int, ended: bool, idle: SuperExec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends itself kills its tasks, and is told nothing."""
    monkeypatch.setattr(RuntimeApi, "said", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), RuntimeApi) as api:
        Thread(target=api.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{api.server_address[1]}"
        if ended:
            idle.terminate()
        idle.start_task([sys.executable, "-c", f"import os, sys; {end}", address, "--token", TOKEN, "--insecure"])
        for thread in threading.enumerate():
            if thread.name == "end of a task":
                thread.join(60)
        api.shutdown()
    expected = ("push-task-output", "failed", "its process (ServerApp) was killed by signal 9")
    assert RuntimeApi.said == [expected] * (0 if ended else reports)
    superexec.report_killed(-9, ["127.0.0.1:1", "--token", TOKEN, "--insecure"])  # nobody listens: nothing is raised


def test_flowers_superexec_runs_as_a_thread_until_its_superlink_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins once the SuperLink listens, keeps its signal handlers, and starts tasks out of sight."""
    asked: list[dict[str, Any]] = []
    polls: list[int] = []
    superexec.SUBMITTED.clear()

    def loop(address: str, **options: Any) -> None:
        asked.append({"address": address, **options})
        run_superexec.register_signal_handlers(event_type="", exit_handlers=[])
        while True:
            polls.append(len(polls))
            run_superexec.time.sleep(600.0)

    for module, name in ((subprocess_executor, "subprocess"), (run_superexec, "time")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back after the test
    monkeypatch.setattr(run_superexec, "register_signal_handlers", lambda **options: pytest.fail("Flower's own"))
    monkeypatch.setattr(run_superexec, "run_superexec", loop)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        command = flower._get_superexec_command(f"127.0.0.1:{port}", None, None, os.getpid(), False)
        running = SuperExec(command, start_new_session=True)
        running.wait(0.2)
        assert not asked
        listener.listen()
        deadline = time.monotonic() + 60
        while not polls and time.monotonic() < deadline:
            time.sleep(0.01)
    expected = {"insecure": True, "root_certificates_path": None, "runtime_dependency_install": False}
    assert asked == [{"address": f"127.0.0.1:{port}", **expected}]
    assert subprocess_executor.subprocess.Popen == running.start_task
    assert running.is_alive()
    assert len(polls) == 1
    superexec.SUBMITTED.set()
    deadline = time.monotonic() + 60
    while len(polls) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(polls) == 2, "it is asked again as soon as a run was submitted"
    running.terminate()
    running.wait(60)
    assert not running.is_alive()


def test_flowers_loop_calls_what_is_replaced_in_it() -> None:
    """Fails where Flower names or calls something in another way."""
    source = inspect.getsource(run_superexec)
    assert "import time\n" in source
    assert "        time.sleep(task_poll_interval)\n" in source
    assert "    register_signal_handlers(\n" in source
