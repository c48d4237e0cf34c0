"""Programs of Python, forked from a process that has imported PyTorch, Flower and fedappeal: they begin at once.

A fresh process takes 1 to 4 s of processor time for its imports. A forked one has its own arguments, environment,
working folder, import path, standard files, session and default signals; what imports read from the environment it
has from the warm process. Tests about start-up, imports, installed scripts, memory, processes left behind, signals
during the start, or other users start fresh processes instead. All workers of pytest share one warm process, and are
forked from it themselves.

    python -m tests.warm LISTENER OWNER    be it: listen at an open socket as long as a process lives
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import context, popen_spawn_posix, util
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from execnet.gateway_base import ThreadExecModel

from fedappeal.flower.processes import QUIET
from fedappeal.system.process_end import end_with_parent

ROOT = Path(__file__).resolve().parents[1]
IMPORT_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""``PYTHONPATH`` of the processes that tests start: this repository, and what the test run itself has."""
_IMPORTED = (
    *("torch", "torchvision", "sklearn.datasets", "flwr.app", "flwr.serverapp", "flwr.clientapp", "httpx"),
    *(
        "fedappeal.flower.superlink.superlink_process",
        "fedappeal.flower.superlink.serverapp",
        "fedappeal.cli.commands",
    ),
    *("fedappeal.federation.own_superlink", "fedappeal.simulation.engine", "fedappeal.views.live.page", "server.app"),
    *("client.app", "client.process.serve", "client.process.fork_server", "hypothesis", "pandas"),
    *("scipy.stats", "matplotlib.pyplot"),
)
"""What programs and tests need. None of it starts a thread or opens a connection when it is imported."""
_STARTING = (
    *("fedappeal.federation.superlink", "fedappeal.runs.launch.clients", "flwr.superlink.cli.flower_superlink"),
    *("flwr.supernode.start_client_internal", "flwr.supercore.superexec.executor.subprocess_executor"),
)
"""Modules whose processes are forked from the warm one, where a forked program starts them."""
_TIED = [sys.executable, "-P", "-m", end_with_parent.__module__]
"""What stands before the process id of the process with which a program ends, and the program."""
_ADDRESS = "FEDAPPEAL_TESTS_WARM"
"""Variable by which a forked program finds the warm process."""
MARK = "FEDAPPEAL_TEST_MARK"
"""Variable whose value names an open file, too: /proc shows the warm process's environment for a forked program."""
_DEFAULT = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_EXECUTE = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class WarmPopen(subprocess.Popen[Any]):
    """A `subprocess.Popen` that forks its program from the warm process, where it is this Python's."""

    _connection: socket.socket | None = None
    _status: int | None = None
    _forks = True

    def _execute_child(self, args: Any, *rest: Any) -> None:
        options = dict(zip(_EXECUTE, rest, strict=True))
        env = dict(os.environ if options["env"] is None else options["env"])
        words = [] if isinstance(args, str) else [*map(str, args)]
        tied = words[:4] == _TIED
        program = _program(words[5:] if tied else words, env)
        if program is None:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        files = [options[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [*(number if file == -1 else file for number, file in enumerate(files)), *options["pass_fds"]]
        request = {"program": program, "cwd": str(options["cwd"] or os.getcwd()), "env": env, "forks": self._forks}
        self._connection = _ask({**request, "files": options["pass_fds"], "tied": tied}, files)
        self.pid = _int(self._connection.recv(4))
        self._child_created = True
        self._close_pipe_fds(*(options[name] for name in _PIPES))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if self._status is None:
            self._status = _status(self._connection, wait_flags)
        return (0, 0) if self._status is None else (self.pid, self._status)

    def _internal_poll(self, *state: Any, **named: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*state, **named)  # type: ignore[misc, no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
                self._handle_exitstatus(ended[1])  # type: ignore[attr-defined]
        return self.returncode


class _Worker(WarmPopen):
    """A worker of pytest, which starts fresh processes unless a test asks for warm ones."""

    _forks = False


def _warm(popen: type[WarmPopen]) -> ModuleType:
    module = ModuleType("subprocess")
    module.__dict__.update({**vars(subprocess), "Popen": popen})
    return module


WARM = _warm(WarmPopen)
"""The module `subprocess`, but for its programs of Python, which are forked from the warm process."""


def fork_workers() -> None:
    """Fork the workers of pytest-xdist, which would take 6 s of processor time each for their imports."""
    setattr(ThreadExecModel, "subprocess", _warm(_Worker))  # noqa: B010


def run(command: Sequence[str | Path], **options: Any) -> "subprocess.CompletedProcess[Any]":
    """Do what `subprocess.run` does, with a forked program."""
    captured = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if options.pop("capture_output", False) else {}
    timeout, check = options.pop("timeout", None), options.pop("check", False)
    with WarmPopen(command, **captured, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@contextlib.contextmanager
def warm_superlinks() -> Iterator[None]:
    """Fork SuperLinks, and the clients of local runs, that are started in this block from the warm process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _STARTING[:2]:
            patch.setattr(f"{name}.subprocess", WARM)
        yield


class WarmSpawn(popen_spawn_posix.Popen):
    """A process of the method "spawn" of `multiprocessing`, forked from the warm process."""

    def _launch(self, process_obj: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(util, "spawnv_passfds", self._fork)
            super()._launch(process_obj)

    def _fork(self, _: Any, command: list[str], files: list[int]) -> int:
        program = command[command.index("-c") :]
        request = {"program": program, "cwd": os.getcwd(), "env": dict(os.environ), "files": list(files)}
        self._connection = _ask(request, [0, 1, 2, *files])
        return _int(self._connection.recv(4))

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and (status := _status(self._connection, flag)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


@contextlib.contextmanager
def warm_spawn() -> Iterator[None]:
    """Fork processes, which `multiprocessing` spawns in this block, from the warm process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context.SpawnProcess, "_Popen", staticmethod(WarmSpawn))
        yield


def _int(sent: bytes) -> int:
    return int.from_bytes(sent, sys.byteorder, signed=True)


def _status(connection: socket.socket, flags: int) -> int | None:
    """Return with which status a forked process ended; None: it runs."""
    if flags & os.WNOHANG and not select.select([connection], [], [], 0)[0]:
        return None
    status = connection.recv(4)
    connection.close()
    # Without an answer the warm process has ended, and all that it forked with it.
    return _int(status) if status else signal.SIGKILL.value


def _program(words: list[str], env: dict[str, str]) -> list[str] | None:
    """Return the options of Python that a command stands for; None: it is no program of this Python's."""
    program = shutil.which(words[0], path=env.get("PATH")) if words else None
    python = Path(sys.executable)
    if program == str(python):
        return [word for word in words[1:] if not word.startswith(("-X", "-u"))]
    if program is None or Path(program).parent != python.parent:
        return None
    with open(program, "rb") as file:
        interpreter = file.readline().removeprefix(b"#!")  # of a virtual environment's two or three names for one
    of_python = Path(os.fsdecode(interpreter).strip())
    ours = of_python.parent == python.parent and of_python.name.startswith("python")
    return ["-P", program, *words[1:]] if ours else None


def _ask(request: dict[str, Any], files: list[int]) -> socket.socket:
    """Send a request to the warm process; return the connection by which it answers: a process id, then a status."""
    body = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address())
    socket.send_fds(connection, [struct.pack("i", len(body))], files)
    connection.sendall(body)
    return connection


@functools.cache
def _address() -> bytes:
    """Start the warm process, unless this process was forked from it; return its address."""
    if name := os.environ.get(_ADDRESS):
        return f"\0{name}".encode()
    owner = os.getpid()
    listener, address = socket.socket(socket.AF_UNIX), f"\0fedappeal-tests-{owner}".encode()  # a name without a file
    with listener:
        listener.bind(address)
        listener.listen(64)
        subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(listener.fileno()), str(owner)],
            cwd=ROOT,
            env={**os.environ, **QUIET, "PYTHONPATH": IMPORT_PATH},
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    return address


def serve(listener: socket.socket, owner: int) -> None:
    """Fork a process for each request and tell the requester how it ended, until the owner has ended."""
    for name in (*_IMPORTED, *_STARTING):
        importlib.import_module(name)
    os.environ[_ADDRESS] = listener.getsockname()[1:].decode()
    setattr(os, "fsync", lambda file: None)  # noqa: B010 # as in conftest.py
    gc.collect()
    gc.freeze()
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakeup)
    asked_by: dict[int, socket.socket] = {}
    tied = dict[int, socket.socket]()
    while Path(f"/proc/{owner}").exists():
        ready, _, _ = select.select([listener, ended, *tied.values()], [], [], 1.0)
        for pid in [pid for pid, connection in tied.items() if connection in ready]:  # its other end was closed
            os.kill(pid, signal.SIGKILL)
            del tied[pid]
        if listener in ready:
            connection, _ = listener.accept()
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.geteuid():
                connection.close()
                continue
            header, files, _, _ = socket.recv_fds(connection, 4, 16)
            with connection.makefile("rb") as stream:
                request = json.loads(stream.read(struct.unpack("i", header)[0]))
            pid = os.fork()
            if pid == 0:
                _become(request, files)
            for file in files:
                os.close(file)
            connection.sendall(struct.pack("i", pid))
            asked_by[pid] = connection
            if request.get("tied"):
                tied[pid] = connection
        if ended in ready:
            os.read(ended, 1024)
            for pid in list(asked_by):
                if (end := os.waitpid(pid, os.WNOHANG))[0]:
                    tied.pop(pid, None)
                    with asked_by.pop(pid) as connection, contextlib.suppress(BrokenPipeError):
                        connection.sendall(struct.pack("i", end[1]))


def _fork_what_it_starts() -> None:
    for name in _STARTING:
        importlib.import_module(name).subprocess = WARM  # type: ignore[attr-defined]
    importlib.import_module("fedappeal.flower.superlink.superexec").Popen = WarmPopen  # type: ignore[attr-defined]
    context.SpawnProcess._Popen = staticmethod(WarmSpawn)  # type: ignore[assignment]


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Be the program of a request, in a process just forked."""
    parent = os.getppid()
    numbers = [0, 1, 2, *request.get("files", [])]
    # First out of the way: a file may have come under the number of another.
    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, max(numbers) + 1) for file in files]
    for number, file in zip(numbers, aside, strict=True):
        os.dup2(file, number)
    for number in set(map(int, os.listdir("/proc/self/fd"))).difference(numbers):
        with contextlib.suppress(OSError):  # the folder was one of them
            os.close(number)
    signal.set_wakeup_fd(-1)
    for number in _DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    end_with_parent(parent)
    os.chdir(request["cwd"])
    address = os.environ[_ADDRESS]
    os.environ.clear()
    os.environ.update(request["env"] | {_ADDRESS: address})
    if request.get("forks", True):
        _fork_what_it_starts()
    if mark := os.environ.get(MARK):
        os.memfd_create(mark)
    code = 1
    try:
        _run_python(request["program"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


def _run_python(words: list[str]) -> None:
    """Do what Python does with options: ``[-P] -m MODULE``, ``-c CODE`` or a file, and arguments."""
    safe, words = words[0] == "-P", words[words[0] == "-P" :]
    paths = os.environ.get("PYTHONPATH", "")
    own = [path for path in sys.path[1:] if path != str(ROOT)]
    # Last is where fedappeal is installed from; the warm process was started with that first.
    sys.path[:] = [*(path for path in paths.split(os.pathsep) if path), *own, str(ROOT)]
    importlib.invalidate_caches()
    if words[0] in ("-m", "-c"):
        sys.path[:0] = [] if safe else [os.getcwd() if words[0] == "-m" else ""]
        sys.argv[:] = [words[0], *words[2:]]
        if words[0] == "-m":
            _show_as(words[1].rpartition(".")[2])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            return
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[:0] = [] if safe else [str(Path(words[0]).resolve().parent)]
        sys.argv[:] = words
        _show_as(Path(words[0]).name)
        runpy.run_path(words[0], run_name="__main__")


def _show_as(name: str) -> None:
    """Set the name by which this process is seen: its first 15 characters."""
    Path("/proc/self/comm").write_text(name)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    os._exit(0)  # without the lines about leaks that some library's end prints
