"""An owner's Flower app in a process of its own, which sees its data and neither keys, client state nor network.

    python -P -m client.process.app_process APP PIPE

Messages go in and replies come out through a pipe, as JSON and bytes: nothing of the app's is unpickled.
"""

import base64
import contextlib
import importlib
import itertools
import json
import logging
import os
import signal
import subprocess  # nosec B404 # our own modules alone
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.limits.limits import LimitReached
from client.process.sandbox import can_confine, python_path
from client.volunteer import Call, VolunteerApp
from fedappeal.flower.bundle import BundleRefused, unpack_app
from fedappeal.flower.messages import be_sender, seconds_left, set_message_id
from fedappeal.protocol.foreign_text import printable
from fedappeal.protocol.packing import content_bytes
from fedappeal.settings.config import ConfigError

log = logging.getLogger("fedappeal.client")
_MOST_TOLD = 1 << 20
"""Bytes of a reply besides its arrays."""
_TIMES_A_MODEL = 8
"""Largest models that a reply and what the app keeps may be together."""
_LOOK = 0.25
"""Seconds between two looks at the memory of its processes."""
_ENVIRONMENT = ("PATH", "LANG", "VIRTUAL_ENV", "OMP_NUM_THREADS")
"""Variables that the app's process has from the client's: on how many cores it calculates is the owner's to say."""
_LINES = 200
"""Lines of the app's output that are logged a message."""
_LONGEST_LINE = 500
_KINDS: dict[str, type[Any]] = {"config": ConfigRecord, "metric": MetricRecord}


def send(pipe: "Connection[Any, Any]", values: Mapping[str, Any], **records: Mapping[str, Any]) -> None:
    """Send plain values, and RecordDicts by name: one JSON text, then each array's bytes."""
    buffers: list[bytes] = []

    def told(record: object) -> dict[str, Any]:
        if isinstance(record, ArrayRecord):
            buffers.extend(bytes(array.data) for array in record.values())
            return {"kind": "array", "arrays": [[k, a.dtype, list(a.shape), a.stype] for k, a in record.items()]}
        kind = "config" if isinstance(record, ConfigRecord) else "metric"
        return {"kind": kind, "values": dict(record)}  # type: ignore[call-overload]

    dicts = {name: {key: told(record) for key, record in content.items()} for name, content in records.items()}
    head = json.dumps({**values, "records": dicts}, default=lambda b: {"b64": base64.b64encode(b).decode()}).encode()
    for part in (head, *buffers):
        pipe.send_bytes(part)


def receive(
    pipe: "Connection[Any, Any]", most_told: int = sys.maxsize, most: int = sys.maxsize
) -> tuple[dict[str, Any], dict[str, RecordDict]]:
    """Return what `send` was given.

    Args:
        pipe: from the other process.
        most_told: bytes of the text.
        most: bytes of all arrays together.

    Raises:
        ValueError: it is no such thing, or larger.
        EOFError, ConnectionError: the other process has ended.
    """
    try:
        head = _part(pipe, most_told)
        values = json.loads(head, object_hook=lambda d: base64.b64decode(d["b64"]) if d.keys() == {"b64"} else d)
        dicts = {}
        for name, content in values.pop("records").items():
            dicts[name] = RecordDict()
            for key, told in content.items():
                if told["kind"] != "array":
                    dicts[name][key] = _KINDS[told["kind"]](told["values"])
                    continue
                arrays = {}
                for array, dtype, shape, stype in told["arrays"]:
                    data = _part(pipe, most)
                    most -= len(data)
                    arrays[array] = Array(str(dtype), tuple(map(int, shape)), str(stype), data)
                dicts[name][key] = ArrayRecord(arrays)
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return values, dicts


def _part(pipe: "Connection[Any, Any]", most: int) -> bytes:
    try:
        return pipe.recv_bytes(most)
    except ConnectionError:
        raise
    except OSError:  # Python reads no more from where a part is too long
        raise EOFError if pipe.readable else ValueError(f"a part of more than {most} bytes") from None


@dataclass
class AppProcess:
    """Calls an app in its process, which is started when it is first needed, and anew after it has failed.

    Attributes:
        app: ``package.module:attribute``.
        readable: what the app may read besides Python: its data.
        private: what it must not be able to read: state folder and keys.
        confined: whether it is confined; else it can do what its owner can.
        memory: bytes that its processes may take together, and each of them; 0: any number.
        bundle: the bundle that has the app, which its process unpacks; empty: it is installed.
    """

    app: str
    readable: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    confined: bool = True
    memory: int = 0
    bundle: bytes = b""
    _told: bool = False
    _process: "subprocess.Popen[bytes] | None" = None
    _pipe: "Connection[Any, Any] | None" = None
    _folder: Any = None
    _lines: int = 0
    _largest: int = 0
    _too_large: int = 0

    def check(self) -> None:
        """Check that the app can be confined as its owner asks.

        Raises:
            ConfigError: it cannot.
        """
        if not self.confined:
            return
        if why := can_confine():
            instead = "" if self.bundle or ":" not in self.app else " without --no-sandbox"
            raise ConfigError(f"app = '{self.app}' is not allowed{instead}: this system cannot confine it ({why})")
        home = Path.home().resolve()
        if wide := next((a for a in self._readable() if home.is_relative_to(Path(a).resolve())), ""):
            raise ConfigError(f"app = '{self.app}' is not allowed: it could read '{wide}', which has your home in it")
        for path in filter(None, self.private):
            for allowed in self._readable():
                if Path(path).resolve().is_relative_to(Path(allowed).resolve()):
                    raise ConfigError(f"'{path}' is not allowed below '{allowed}', which the app can read: move it")

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the app's reply to a message; its context's state becomes what the app made of it.

        Raises:
            LimitReached: it did not answer in time, or ended.
            ConfigError: it failed, or its answer is none.
        """
        process, about = self._running(), message.metadata
        plain = {
            "kind": about.message_type,
            "run": about.run_id,
            "node": context.node_id,
            "group": about.group_id,
            "ttl": max(1.0, seconds_left(message)),
            "node-config": dict(context.node_config),
            "run-config": dict(context.run_config),
        }
        if self.bundle and not self._told:
            plain["bundle"], self._told = self.bundle, True
        self._lines = 0
        sizes = [content_bytes(record) for record in message.content.values() if isinstance(record, ArrayRecord)]
        self._largest = max(self._largest, sum(sizes))
        # Whatever it kept before: that must not grow by itself.
        most = _TIMES_A_MODEL * self._largest + 64 * _MOST_TOLD
        late = threading.Event()
        watch = threading.Timer(max(0.0, seconds_left(message)), self._kill, (process, late))
        watch.start()
        try:
            assert self._pipe is not None
            send(self._pipe, plain, content=message.content, state=context.state)
            values, records = receive(self._pipe, _MOST_TOLD, most)
        except (ConnectionError, EOFError):
            code = self.end()
            why = "did not answer in time, and was ended" if late.is_set() else f"ended (exit code {code})"
            if process.pid == self._too_large:
                why = f"and what it started take more than this client's max-memory = {self.memory / 1e6:g} MB"
            raise LimitReached(f"the app's process {why}") from None
        except ValueError as error:
            self.end()
            raise ConfigError(
                f"the app's process answered what is no reply ({printable(str(error))[:200]})"
            ) from None
        finally:
            watch.cancel()
        if "error" in values or "content" not in records:
            raise ConfigError(f"the app failed: {printable(str(values.get('error')))[:_LONGEST_LINE]}")
        context.state.clear()
        context.state.update(records.get("state", RecordDict()))
        return Message(records["content"], reply_to=message)

    @property
    def pid(self) -> int | None:
        """The process's id; None: there is none."""
        return None if self._process is None else self._process.pid

    def end(self) -> int | None:
        """End the process; return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        if self._pipe is not None:
            self._pipe.close()
        self._folder.cleanup()
        return code

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.end()
        self._told = False
        self._folder = tempfile.TemporaryDirectory(prefix="fedappeal-app-")
        self._pipe, theirs = Pipe()
        words = ["client.process.app_process", self.app, str(theirs.fileno())]
        if self.confined:
            readable = os.pathsep.join(self._readable())
            words = ["client.process.sandbox", readable, self._folder.name, str(self.memory), *words]
        environment = {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
        environment |= {"TMPDIR": self._folder.name, "HOME": self._folder.name, "PYTHONPATH": python_path()}
        python = [sys.executable, "-P", "-m"]
        process = subprocess.Popen(  # nosec B603 # our own modules
            [*python, "fedappeal.system.process_end", str(os.getpid()), *python, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=self._folder.name,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._process = process
        threading.Thread(target=self._log, args=(process,), daemon=True).start()
        if self.memory:
            threading.Thread(target=self._bound, args=(process,), daemon=True).start()
        return process

    def _readable(self) -> list[str]:
        return [*self.readable, sys.prefix, sys.base_prefix, *filter(None, python_path().split(os.pathsep))]

    @staticmethod
    def _kill(process: "subprocess.Popen[bytes]", late: threading.Event) -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _bound(self, process: "subprocess.Popen[bytes]") -> None:
        """End the app once its processes take too much memory together; the kernel bounds each of them alone."""
        from fedappeal.system.memory import holds_more  # psutil is nothing for the confined process

        while process.poll() is None:
            if holds_more(process.pid, self.memory) and process.poll() is None:
                self._too_large = process.pid
                self._kill(process, threading.Event())
                return
            time.sleep(_LOOK)

    def _log(self, process: "subprocess.Popen[bytes]") -> None:
        """Log what the app writes, a bounded number of lines a message."""
        assert process.stdout is not None
        with process.stdout as output:
            while line := output.readline(_LONGEST_LINE):
                self._lines += 1
                if self._lines <= _LINES:
                    log.info("app: %s", printable(line.decode(errors="replace").rstrip()))
                elif self._lines == _LINES + 1:
                    log.info("app: (more than %d lines of this message are not shown)", _LINES)


def _load_app(name: str, bundle: bytes) -> Call:
    """Return an app, of a bundle or, where that is empty, installed.

    A bundle's modules go before those of their names that are loaded here already, as ``client``.
    """
    module, _, attribute = name.partition(":")
    if bundle:
        folder = Path("bundle").absolute()
        try:
            unpack_app(bundle, folder)
        except BundleRefused as error:
            raise BundleRefused(f"the bundle is not allowed: {error}") from None
        sys.path[:0] = [str(folder)] if str(folder) not in sys.path else []
        in_bundle = {entry.stem for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".py"}
        for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] in in_bundle]:
            del sys.modules[loaded]
    imported = importlib.import_module(module)
    if bundle and not Path(getattr(imported, "__file__", None) or "/").is_relative_to(folder):
        raise ImportError(f"Python finds another '{module}' before the bundle's: give that another name")
    app = getattr(imported, attribute)
    if isinstance(app, VolunteerApp):  # its author has wrapped it: here the owner's client decides
        return app.wrapped
    if not isinstance(app, ClientApp):
        raise TypeError(f"'{name}' is no ClientApp")
    return app


def main() -> None:
    """Answer messages until the pipe ends."""
    name, descriptor = sys.argv[1:]
    pipe, app, bundle = Connection(int(descriptor)), None, b""
    for number in itertools.count(1):
        try:
            values, records = receive(pipe)
        except (EOFError, ConnectionError):  # the latter where it has ended before it read a reply
            return
        state = records["state"]
        try:
            bundle = values.get("bundle", bundle)
            app = app or _load_app(name, bundle)
            be_sender(run_id=values["run"], node_id=1, task_id=1)
            node, group = values["node"], values["group"]
            message = Message(records["content"], node, values["kind"], ttl=values["ttl"], group_id=group)
            set_message_id(message, f"{number}")
            context = Context(values["run"], node, values["node-config"], state, values["run-config"])
            reply = app(message, context)
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
            send(pipe, {}, content=reply.content, state=context.state)
        except Exception as error:
            logging.getLogger(__name__).exception("the app failed")
            with contextlib.suppress(ConnectionError):  # seen where the next message is read
                send(pipe, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
