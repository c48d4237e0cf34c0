"""What `superexec` relies on: how Flower's SuperExec starts a task, and how a task reads its token."""

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supercore.superexec.executor.types import ExecutionSpec

from fedappeal.flower.superlink import superexec

TOKEN = "0123456789abcdef" * 4
flower: Any = import_module("flwr.supercore.cli.flower_superexec")  # its package has a function of the same name
TASK = f"""#!{sys.executable}
import argparse, pathlib, sys
from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
parser = argparse.ArgumentParser()
add_args_flwr_app_common(parser)
arguments, _ = parser.parse_known_args()
command = pathlib.Path("/proc/self/cmdline").read_text().replace(chr(0), " ")
pathlib.Path(__file__).with_name("told").write_text(try_obtain_flwr_app_token(arguments) + "\\n" + command)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads its command line from /proc")
@pytest.mark.parametrize("quiet", [True, False])
def test_a_task_gets_its_token_and_its_command_line_does_not_say_it(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP]
    program.write_text(TASK)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    started: list[subprocess.Popen[bytes]] = []

    def start(*given: Any, **named: Any) -> None:
        started.append(superexec.start_task(*given, **named))

    flowers = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(subprocess_executor, "subprocess", flowers)
    spec = ExecutionSpec(TaskType.SERVER_APP, "127.0.0.1:8000", TOKEN, True, None, False, None, quiet, 1)
    assert subprocess_executor.SubprocessExecutor().launch(spec)
    assert started[0].wait(60) == 0
    token, command = (tmp_path / "told").read_text().split("\n")
    assert token == TOKEN
    assert TOKEN not in command
    assert "127.0.0.1:8000 --token-file /dev/fd/" in command
    assert command.rstrip().endswith("--insecure")


def test_a_task_ends_with_the_superexec_that_started_it() -> None:
    """The task holds the pipe open, so this call returns only once it has ended."""
    killed = (
        "import os, signal, sys\n"
        "from fedappeal.flower.superlink.superexec import start_task\n"
        "start_task([sys.executable, '-c', 'import time; time.sleep(600)', '--token', 'secret'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
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
def test_the_superlink_is_told_of_a_task_that_was_killed(
    end: str, reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RuntimeApi, "said", [])
    monkeypatch.setattr(superexec, "Thread", lambda **options: SimpleNamespace(start=lambda: None))
    with ThreadingHTTPServer(("127.0.0.1", 0), RuntimeApi) as api:
        Thread(target=api.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{api.server_address[1]}"
        command = [sys.executable, "-c", f"import os, sys; {end}", address, "--token", TOKEN, "--insecure"]
        superexec.report_killed(superexec.start_task(command), command)
        api.shutdown()
    expected = ("push-task-output", "failed", "its process (ServerApp) was killed by signal 9")
    assert RuntimeApi.said == [expected] * reports
    if reports:  # the SuperLink has ended too: nothing is raised
        superexec.report_killed(superexec.start_task(command), command)


def test_the_superexec_is_flowers_with_its_way_to_start_a_task_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess_executor.subprocess)  # put back after the test
    monkeypatch.setattr(flower, "flower_superexec", lambda: found.append(subprocess_executor.subprocess.Popen))
    monkeypatch.setattr(superexec, "end_with_parent", found.append)
    arguments = ["--insecure", "--runtime-api-address", "127.0.0.1:8000", "--parent-pid", "7"]
    assert flower._parse_args().parse_args(arguments).parent_pid == 7
    monkeypatch.setattr(sys, "argv", ["superexec", *arguments])
    superexec.main()
    assert found == [7, superexec.start_task]
