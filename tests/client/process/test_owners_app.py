"""A bundle's code: the owner approves its hash, hostile bundles are one line, and only its own process unpacks it."""

import hashlib
import io
import os
import stat
import struct
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from client.approval import approve, asking
from client.limits.limits import Limits
from client.outcome import JOINED, WAITING
from client.process.owners_app import OwnersApp, clients_of
from client.process.sandbox import can_confine
from client.settings import AppSettings, Connection, NodeSettings
from client.state.own_key import note_connection
from client.volunteer import AppClients
from fedappeal.flower.bundle import LARGEST, MOST_FILES, MOST_UNPACKED, RunSettings, read_bundle
from fedappeal.flower.messages import be_sender
from fedappeal.protocol.keys import SAT_OUT_ERROR
from fedappeal.settings.config import ConfigError, Scalar

pytestmark = pytest.mark.skipif(bool(can_confine()), reason="this system cannot confine a process")

PROJECT = """
[project]
name = "hearts"
version = "1.0.0"
[tool.flwr.app.components]
serverapp = "hearts.server_app:app"
clientapp = "{app}"
[tool.flwr.app.config]
lr = 0.5
"""
CODE = """
import os
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hearts.more import TARGET

app = ClientApp()
try:
    Path({mark!r}).write_text("imported")
except OSError:
    pass

def reply(message, by):
    sent = message.content["arrays"]["w"].numpy()
    metrics = MetricRecord({{"num-examples": 3, "loss": float(abs(TARGET - sent[0]))}})
    model = ArrayRecord({{"w": Array(sent + by)}})
    return Message(RecordDict({{"arrays": model, "metrics": metrics}}), reply_to=message)

@app.train()
def train(message, context):
    return reply(message, 0.5)

@app.evaluate()
def evaluate(message, context):
    return reply(message, 0.0)
"""


def zipped(files: dict[str, bytes | str], app: str = "hearts.client_app:app") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {"pyproject.toml": PROJECT.format(app=app), **files}.items():
            archive.writestr(name, content)
    return packed.getvalue()


def hearts(mark: Path, target: float = 2.0) -> bytes:
    code = {"hearts/__init__.py": "", "hearts/client_app.py": CODE.format(mark=str(mark))}
    return zipped({**code, "hearts/more.py": f"TARGET = {target}\n"})


def link(target: str) -> bytes:
    packed = io.BytesIO(zipped({"hearts/client_app.py": "app = 1"}))
    with zipfile.ZipFile(packed, "a") as archive:
        info = zipfile.ZipInfo("hearts/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
    return packed.getvalue()


def named_twice() -> bytes:
    content = zipped({"hearts/client_app.py": "app = 1", "hearts/client_bpp.py": "app = 2"})
    return content.replace(b"client_bpp", b"client_app")


def lying() -> bytes:
    """A megabyte of zip that says that it unpacks to 100 bytes, and unpacks to 200 MB."""
    size = 200_000_000
    content = zipped({"hearts/client_app.py": b"#" * size})
    return content.replace(struct.pack("<L", size), struct.pack("<L", 100))


HOSTILE = {
    "a path out of it": (lambda: zipped({"../../evil.py": ""}), r"the file '\.\./\.\./evil\.py' is not allowed"),
    "an absolute path": (lambda: zipped({"/tmp/evil.py": ""}), r"the file '/tmp/evil\.py' is not allowed"),
    "a path of Windows": (lambda: zipped({"C:\\evil.py": ""}), r"the file .* is not allowed"),
    "a path of control characters": (lambda: zipped({"a\nb.py": ""}), r"the file 'a\\nb\.py' is not allowed"),
    "a link": (lambda: link("/etc/passwd"), "the file 'hearts/link' is not allowed"),
    "a bomb": (lambda: zipped({"bomb.py": bytes(MOST_UNPACKED)}), f"at most {MOST_UNPACKED} are allowed"),
    "very many files": (lambda: zipped({f"f{k}": "" for k in range(MOST_FILES + 1)}), f"at most {MOST_FILES} are"),
    "a name twice": (named_twice, "it has two files of one name"),
    "more than may be": (lambda: zipped({"x.py": os.urandom(LARGEST)}), f"it has more than {LARGEST} bytes"),
    "another module": (lambda: zipped({"hearts/a.py": ""}, "os:system"), "clientapp = 'os:system' is not allowed"),
    "our module": (lambda: zipped({"a.py": ""}, "client.app:app"), "clientapp = 'client.app:app' is not allowed"),
    "an app of a long name": (
        lambda: zipped({"a.py": ""}, "a:" + "b" * 999),
        "clientapp has 1001 characters: at most",
    ),
    "no name of a module": (lambda: zipped({"a.py": ""}, "../a:app"), r"clientapp = '\.\./a:app' is not allowed"),
}


def run_of(content: bytes) -> RunSettings:
    return read_bundle(content, {})


class NoProcess:
    """A process that must not be started."""

    app, bundle = "", b""

    def end(self) -> None:
        """Nothing has begun."""


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_bundle_is_one_line_and_nothing_of_it_is_unpacked(case: str, tmp_path: Path) -> None:
    make, line = HOSTILE[case]
    content, process = make(), NoProcess()
    owners = OwnersApp(AppSettings.parse({"app": "bundle"}), process)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=line) as error:
        owners.begin(run_of(content))
    assert "\n" not in str(error.value)
    assert not process.bundle
    file = tmp_path / "hearts.fab"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"app = '.*hearts\.fab' is not allowed: ") as error:
        OwnersApp(AppSettings.parse({"app": str(file)}), process)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["hearts.fab"]


def settings(tmp_path: Path, app: str, **more: Scalar) -> tuple[AppClients, OwnersApp, NodeSettings]:
    of_app = AppSettings.parse({"app": app})
    node = NodeSettings.parse(
        {
            "state-dir": str(tmp_path / "state"),
            "approve": of_app.approval(None),
            "client-id": "mine",
            "participation": "always",
            "allow": "",
            **more,
        }
    )
    (tmp_path / "state").mkdir(exist_ok=True)
    connection = Connection.parse({"superlink": "h:1", "insecure": True})
    return *clients_of(of_app, node, connection, Limits()), node


class Client:
    """An owner's client of a bundle's code; each run has its bundle."""

    def __init__(self, tmp_path: Path, app: str = "bundle", **more: Scalar) -> None:
        self.answer, self.owners, self.node = settings(tmp_path, app, **more)

    def outcome(self, content: bytes, run: int = 7, kind: str = "train") -> tuple[str, Message]:
        be_sender(run_id=run, node_id=1, task_id=9)
        arrays, told = ArrayRecord({"w": Array(np.array([1.0]))}), ConfigRecord({"server-round": 1})
        message = Message(RecordDict({"arrays": arrays, "config": told}), 3, kind, ttl=60, group_id="1")
        config = {**run_of(content).config, "code": "fedappeal's own", "task": "digits, code = fedappeal's own"}
        context = Context(run, 3, self.node.as_config(), RecordDict(), config)
        note_connection(context.state, "key", lasting=True, superlink="h:1")
        self.owners.begin(run_of(content))
        outcome = self.answer(message, context)
        return outcome.what, outcome.reply(message)

    @property
    def process(self) -> object:
        return self.answer.app._process  # type: ignore[attr-defined]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    one = Client(tmp_path)
    yield one
    one.answer.app.end()  # type: ignore[attr-defined]


def test_a_bundle_waits_for_its_hash_and_then_runs_confined(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    content = hearts(mark)
    code = hashlib.sha256(content).hexdigest()
    for _ in range(2):
        what, reply = client.outcome(content)
        assert (what, reply.error.code) == (WAITING, SAT_OUT_ERROR), "every strategy leaves it out"
        assert "waits for its owner's approval" in str(reply.error.reason)
        assert client.process is None, "nothing of it was imported"
    approved, said = asking(tmp_path / "state")["7"]
    assert not approved
    assert said.startswith(f"a run of h:1: code = hearts.client_app:app of the bundle {code}, "), said
    approve(tmp_path / "state", "7")
    what, reply = client.outcome(content)
    assert what == JOINED
    assert reply.content["arrays"]["w"].numpy() == pytest.approx([1.5])
    assert not mark.exists(), "code at import is confined, too"


@pytest.mark.parametrize("where", ["the same run", "another run"])
def test_another_hash_asks_again(client: Client, tmp_path: Path, where: str) -> None:
    first, second = hearts(tmp_path / "x"), hearts(tmp_path / "x", target=3.0)
    client.outcome(first)
    approve(tmp_path / "state", "7")
    assert client.outcome(first)[0] == JOINED
    assert client.outcome(second, 7 if where == "the same run" else 8)[0] == WAITING
    assert client.process is None, "nothing of the other one runs"
    assert client.outcome(first, 9)[0] == JOINED, "what was approved is approved in the next run like it"


def test_a_bundle_that_its_owner_names_by_hash_or_file_is_the_only_one(tmp_path: Path) -> None:
    mine, other = hearts(tmp_path / "x"), hearts(tmp_path / "x", target=3.0)
    code = hashlib.sha256(mine).hexdigest()
    (tmp_path / "mine.fab").write_bytes(mine)
    by_hash = Client(tmp_path, code, approve="any")
    by_file = Client(tmp_path, str(tmp_path / "mine.fab"), approve="any")
    try:
        assert by_hash.outcome(mine)[0] == JOINED
        with pytest.raises(ConfigError, match=f"its SHA-256 is {hashlib.sha256(other).hexdigest()}, and its owner"):
            by_hash.outcome(other)
        (tmp_path / "mine.fab").write_bytes(other)
        assert by_file.outcome(other)[0] == JOINED, "the run's own bundle is not looked at"
        assert code in by_file.owners.code
    finally:
        by_hash.answer.app.end()  # type: ignore[attr-defined]
        by_file.answer.app.end()  # type: ignore[attr-defined]


SPREAD = """
import os, shutil, subprocess, sys, sysconfig
from pathlib import Path
bundle, spread = Path(__file__).parents[1], []
user = Path(os.environ["HOME"], ".local", "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
for place in (Path(), Path(os.environ["HOME"]), user, Path(os.environ["TMPDIR"]), Path(sysconfig.get_path("purelib")),
              *map(Path, sys.path)):
    for name in ("sitecustomize.py", "usercustomize.py", "evil.pth"):
        try:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(bundle / name, place / name)
            spread.append(str(place / name))
        except OSError:
            pass
done = subprocess.run([sys.executable, "-c", "pass"], env={**os.environ, "PYTHONPATH": str(bundle)})
print("spread to", spread, "and started one", done.returncode, flush=True)
"""
"""What an app does at its import so that Python itself runs its files at the next start."""


def test_files_that_python_runs_at_its_start_run_in_no_process_outside(client: Client, tmp_path: Path) -> None:
    mark, place = tmp_path / "ran", tmp_path / "unpacked"
    line = f"import os; os.path.isdir({str(tmp_path)!r}) and open({str(mark)!r}, 'a').write(f'{{os.getpid()}} ')\n"
    app = SPREAD + CODE.format(mark=str(mark)).replace("from hearts.more import TARGET", "TARGET = 2.0")
    hidden = ("evil.pth", "hearts/evil.pth", "lib/python3.11/site-packages/evil.pth", ".local/evil.pth")
    at_start = dict.fromkeys(("sitecustomize.py", "usercustomize.py", *hidden), line)
    more = {"pyvenv.cfg": f"home = {place}\n", "python311._pth": f"{place}\nimport site\n"}
    content = zipped({**at_start, **more, "hearts/__init__.py": "", "hearts/client_app.py": app})
    for number in range(2):
        client.outcome(content)
        approve(tmp_path / "state", "7")
        assert client.outcome(content)[0] == JOINED
        assert not os.listdir(client.answer.app._folder.name), "its files are seen by no process outside"  # type: ignore[attr-defined]
        client.answer.app.end()  # type: ignore[attr-defined] # the next one starts anew
        assert not mark.exists(), f"start {number}"
    assert not (Path(sysconfig.get_path("purelib")) / "evil.pth").exists()
    # As it would run: the files do what they are here for.
    zipfile.ZipFile(io.BytesIO(content)).extractall(place)
    subprocess.run([sys.executable, "-c", "pass"], env={**os.environ, "PYTHONPATH": str(place)}, check=True)
    assert mark.exists()


def test_headers_that_lie_unpack_no_more_than_they_say(client: Client, tmp_path: Path) -> None:
    content = lying()
    client.outcome(content)
    approve(tmp_path / "state", "7")
    with pytest.raises(
        ConfigError, match=r"the app failed: .*the bundle is not allowed: it cannot be read: Bad CRC-32"
    ):
        client.outcome(content)


@pytest.mark.parametrize(("module", "more"), [("client", {}), ("client.app", {"client/__init__.py": ""})])
def test_a_bundles_module_is_its_own_whatever_is_loaded_by_that_name(
    client: Client, tmp_path: Path, module: str, more: dict[str, str]
) -> None:
    """What runs is what was approved, and an app of a flat ``client.py`` works."""
    code = CODE.format(mark=str(tmp_path / "x")).replace("from hearts.more import TARGET", "TARGET = 2.0")
    content = zipped({**more, f"{module.replace('.', '/')}.py": code}, f"{module}:app")
    client.outcome(content)
    approve(tmp_path / "state", "7")
    for _ in range(2):
        assert client.outcome(content)[0] == JOINED


def test_a_bundle_of_a_name_that_python_keeps_for_itself_is_one_line(client: Client, tmp_path: Path) -> None:
    content = zipped({"time.py": "app = 1"}, "time:sleep")
    client.outcome(content)
    approve(tmp_path / "state", "7")
    with pytest.raises(ConfigError, match="Python finds another 'time' before the bundle's"):
        client.outcome(content)


def test_a_bundle_that_cannot_be_unpacked_never_runs_installed_code_of_its_name(
    client: Client, tmp_path: Path
) -> None:
    content = zipped({"client/app.py": "app = 1", "client/__init__.py": ""}, "client.app:app")
    place = content.index(b"client/app.py") + len("client/app.py")
    content = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
    client.outcome(content)
    approve(tmp_path / "state", "7")
    for _ in range(3):
        with pytest.raises(ConfigError, match=r"the app failed: .*the bundle is not allowed: it cannot be read: "):
            client.outcome(content)


@pytest.mark.parametrize(
    ("app", "approve", "line"),
    [
        ({"app": "bundle"}, "any", "approve = 'any' is not allowed with app = 'bundle': asked, listed"),
        ({"app": "bundle", "no-sandbox": True}, None, "no-sandbox is not allowed with app = 'bundle'"),
        ({"app": "hearts"}, None, "app = 'hearts' is not allowed: package.module:attribute of a ClientApp, FILE.fab"),
    ],
)
def test_what_an_owner_cannot_have_is_one_line(app: dict[str, Scalar], approve: str | None, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        AppSettings.parse(app).approval(approve)


@pytest.mark.parametrize(
    ("app", "approve", "result"),
    [
        ("", None, "any"),
        ("a.b:c", None, "any"),
        ("x.fab", None, "asked"),
        ("0" * 64, None, "asked"),
        ("bundle", None, "asked"),
        ("bundle", "listed", "listed"),
        ("x.fab", "any", "any"),
    ],
)
def test_a_bundles_code_is_asked_about_where_its_owner_says_nothing(
    app: str, approve: str | None, result: str
) -> None:
    assert AppSettings.parse({"app": app}).approval(approve) == result
