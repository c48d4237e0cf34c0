"""`fedappeal federation open`: all that is missing is made once, and later commands in its folder need no address."""

import os
import re
import signal
import socket
import sys
import tomllib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedappeal.cli import open_federation as open_module
from fedappeal.cli.commands import cli
from fedappeal.cli.main import main
from fedappeal.cli.open_federation import FederationSettings, open_federation, superlink_options
from fedappeal.federation.certificates import check_names
from fedappeal.federation.folder import Addresses, FederationFolder
from fedappeal.settings.config import ConfigError
from tests.federation.conftest import FEDAPPEAL, Client, run_command
from tests.ports import free_port

flower: Any = import_module("flwr.superlink.cli.flower_superlink")


GROUP: Any = get_command(cli)
SUPERLINK = GROUP.commands["superlink"]
OPTIONS = superlink_options(SUPERLINK)


def uncommented(text: str) -> dict[str, Any]:
    """Return a file's values as if each of its settings were set."""
    return tomllib.loads(re.sub(r"^# ([a-z-]+ = )", r"\1", text, flags=re.MULTILINE))


def test_the_file_has_every_option_of_the_superlink_and_each_can_be_set(tmp_path: Path) -> None:
    values = uncommented(FederationSettings(["a.example.org"]).text(OPTIONS))["superlink"]
    own = {option.opts[0][2:] for option in SUPERLINK.params if option.opts[0].startswith("--")}
    shown = {line.split()[0].rstrip(",")[2:] for line in flower._parse_args_run_superlink().format_help().splitlines()
             if re.match(r"  --", line)}  # fmt: skip
    deprecated = {"auth-list-public-keys", "allow-runtime-dependency-installation", "control-api-address"}
    assert set(values) == (own | shown | {"fleet-http-address"}) - deprecated
    path = tmp_path / "federation.toml"
    path.write_text(FederationSettings(["a.example.org"], superlink=values).text(OPTIONS))
    read = FederationSettings.read(path, OPTIONS)
    assert dict(read.superlink) == values
    assert "--metrics-port=0" in read.arguments(path, OPTIONS)
    assert "--insecure" not in read.arguments(path, OPTIONS), "false"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host = [", "cannot be read: Invalid value"),
        ("host = " + "[" * 10_000, "cannot be read: "),
        (
            "hosts = ['a']",
            "hosts in '.*' is not allowed: host, join-address, .*-published and the table",
        ),
        ("", "host in '.*' is not allowed: a list of names"),
        ("host = 'a'", "host in '.*' is not allowed: a list of names"),
        ("host = ['a']\njoin-address = 9094", "join-address in '.*' is not allowed: a text"),
        ("host = ['a']\nsuperlink = 1", "superlink in '.*' is not allowed: a table"),
        ("host = ['a']\n[superlink]\ndatabas = 'x'", "databas in .*: no option of .*; did you mean 'database'?"),
        ("host = ['a']\n[superlink]\ninsecure = 'yes'", "insecure = 'yes' in .* is not allowed: true or false"),
        ("host = ['a']\n[superlink]\nport = true", "port = True in .* is not allowed: a text or a number"),
        ("host = ['a']\n[superlink]\nallow = 'mine'", "allow = 'mine' in .* is not allowed: a list"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected) as refused:
        FederationSettings.read(path, OPTIONS)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("new", "host is missing"),
        ("--port 8001 new --host a", "folder is missing"),
        ("new --host a_b,c", "host = 'a_b,c' is not allowed"),
        ("new --host a --prot 8001", "unrecognized arguments: --prot"),
        ("new --host a --port x", "--port"),
        ("new --host a --join-address 9094", "join-address = '9094' is not allowed: HOST:PORT"),
        ("new --host a --fleet-published fed.example.org", "fleet-published = 'fed.example.org' is not allowed"),
        ("new --host a --join-published a_b-:1", "host = 'a_b-' is not allowed"),
        ("new --host a --join-published a:0", "join-published = 'a:0' is not allowed: HOST:PORT, with a port from"),
        ("new --host a --fleet-published a:99999", "fleet-published = 'a:99999' is not allowed"),
        ("new --host a --fleet-published *.b:1", "fleet-published = '*.b:1' is not allowed"),
        ("new --host *.a --host b", "address = '*.a:9092' is not allowed in invitations: as first host one"),
        ("new --host a --fleet-api-address :0", "address = 'a:0' is not allowed in invitations"),
        ("new --host a --service --fleet-http-address a:b", "fleet-http-address = 'a:b' is not allowed: HOST:PORT"),
        ("new --host a --control-api-address b:1", "unrecognized arguments: --control-api-address b:1"),
        ("new --host a --auth-list-public-keys=b", "unrecognized arguments: --auth-list-public-keys=b"),
        ("new --host a --allow-runtime-dependency-installation", "unrecognized arguments: --allow-runtime"),
        ("new --host a --simulation", "simulation is not allowed: clients of a federation come to its Fleet API"),
        ("new --host a --insecure", "insecure is not allowed with enable-supernode-auth"),
        ("new --host a --service --page x", "page = 'x' is not allowed: PORT or HOST:PORT"),
        ("new --host a --service --metrics-port 99999", "metrics-port = 99999 is not allowed"),
        ("new --host a --service --metrics-address x", "metrics-address = 'x' is not allowed"),
    ],
)
def test_nothing_is_made_where_an_option_is_wrong(
    arguments: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedappeal", "federation", "open", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, expected in line) == (2, True), line
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_folder_is_found_from_within_by_name_and_from_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "fed", tmp_path / "elsewhere"
    (folder / "runs" / "first").mkdir(parents=True)
    elsewhere.mkdir()
    Addresses("127.0.0.1:8001", "certs/ca.crt", "fed.example.org:9092").write(folder)
    monkeypatch.chdir(elsewhere)
    assert FederationFolder.find(None) is None
    places = [FederationFolder.find(folder), FederationFolder.find(None, near=folder / "runs" / "first")]
    monkeypatch.chdir(folder)
    for place in [*places, FederationFolder.find(None)]:
        assert place
        assert (place.path, place.ca_file) == (folder, str(folder / "certs" / "ca.crt"))
    with pytest.raises(ConfigError, match="no federation was opened there"):
        FederationFolder.find(elsewhere)
    (folder / "addresses.json").write_text("{}")
    with pytest.raises(ConfigError, match="open the federation again"):
        FederationFolder.find(None)


@pytest.mark.e2e
def test_started_again_it_is_the_same_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fed"
    ports = [str(free_port()) for _ in range(4)]
    options = ["--port", ports[0], "--fleet-api-address", f"127.0.0.1:{ports[1]}", "--page", "0"]
    options += ["--join-address", f"127.0.0.1:{ports[3]}"]

    def opened(*arguments: str) -> Client:
        process = Client([*FEDAPPEAL, "federation", "open", str(folder), *arguments], tmp_path / "log")
        process.wait_for("the live page: ")
        return process

    assert run_command("key", str(tmp_path / "anna.key")).code == 0
    process = opened("--host", "fed.example.org", *options)
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        done = run_command("federation", "register", str(tmp_path / "anna.pub"), "--federation", str(folder))
        assert (done.code, done.err) == (0, "")
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.glob("state.db*")}
        assert set(modes.values()) == {0o600}, modes
    finally:
        process.end()
    authority, settings = (folder / "certs" / "ca.crt").read_bytes(), (folder / "federation.toml").read_text()
    assert f"port = {ports[0]}" in settings, "what it was first started with is written down"
    monkeypatch.chdir(folder)
    process = opened("--port", ports[2])
    try:
        assert "anna" in run_command("federation", "list").out
        assert f":{ports[2]}" in FederationFolder.find(None).addresses.control  # type: ignore[union-attr]
        done = run_command(
            "federation", "list", "--superlink", f"127.0.0.1:{ports[0]}", "--root-certificates", "certs/ca.crt"
        )
        assert done.code, "the option of the command goes before the file's"
    finally:
        process.end()
    assert (folder / "certs" / "ca.crt").read_bytes() == authority
    assert (folder / "federation.toml").read_text() == settings


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, bool]]:
    """Return what opens a federation with more words: whether its SuperLink resumes, and asks for keys."""
    seen: list[tuple[bool, bool]] = []
    asks = "--enable-supernode-auth"
    monkeypatch.setattr(
        SUPERLINK, "invoke", lambda context: seen.append((context.params["resume"], asks in context.args))
    )
    monkeypatch.setattr("fedappeal.cli.open_federation._redeeming", lambda *_: nullcontext())
    monkeypatch.chdir(tmp_path)

    def start(*words: str, host: str = "a.example.org", folder: str = "fed", **texts: str) -> tuple[bool, bool]:
        chosen = {"join_address": f"127.0.0.1:{free_port()}", **texts}
        ports = ["--port", str(free_port()), "--fleet-api-address", f"127.0.0.1:{free_port()}", "--page", "0"]
        open_federation(
            SUPERLINK,
            tmp_path / folder,
            [host],
            chosen,
            False,
            [*ports, *words],
        )
        return seen.pop()

    return start


def test_a_flag_of_the_file_is_switched_off_by_the_command_line(tmp_path: Path, started: Any) -> None:
    assert started() == (True, True)
    assert started("--no-resume") == (False, True)
    assert started("--no-resume", "--no-enable-supernode-auth") == (False, False)
    assert started() == (True, True), "the file stays as it is"
    with pytest.raises(ConfigError, match="no-resume is not allowed with resume"):
        started("--no-resume", "--resume")
    with pytest.raises(ConfigError, match="unrecognized arguments: --no-resum"):
        started("--no-resum")
    assert started("--no-resume", folder="other") == (False, True)
    assert "\nresume = false\n" in (tmp_path / "other" / "federation.toml").read_text()


def test_a_new_name_needs_the_key_of_the_ca(tmp_path: Path, started: Any) -> None:
    started()
    certs = tmp_path / "fed" / "certs"
    (certs / "ca.key").rename(tmp_path / "ca.key")
    before = (certs / "server.crt").read_bytes()
    started()  # all names are in the certificate
    with pytest.raises(ConfigError, match=r"host = 'b\.example\.org' is not allowed: .*ca\.key', which is kept"):
        started(host="b.example.org")
    assert (certs / "server.crt").read_bytes() == before
    (tmp_path / "ca.key").rename(certs / "ca.key")
    started(host="b.example.org")
    check_names(certs / "server.crt", ["a.example.org", "B.example.org", "127.0.0.1"])


def test_files_for_services_are_made_of_the_same_settings(tmp_path: Path) -> None:
    folder = tmp_path / "fed"
    given = ["federation", "open", str(folder), "--host", "fed.example.org", "--service"]
    done = run_command(*given, "--fleet-http-address", "0.0.0.0:9193")
    assert (done.code, done.err) == (0, "")
    unit = (folder / "fedappeal-federation.service").read_text()
    assert f'ExecStart="{sys.executable}" -P -m fedappeal.cli.main federation open "{folder}"\n' in unit
    assert f'ReadWritePaths="{folder}"\n' in unit
    compose = (folder / "compose.yml").read_text()
    assert 'ports: ["9092:9092", "9193:9193", "9094:9094", "127.0.0.1:8090:8090"]' in compose
    assert not re.search(r"\$[a-z]", unit + compose), "every place is filled"


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        ("port", "{port}"),
        ("fleet-api-address", "127.0.0.1:{port}"),
        ("fleet-http-address", "127.0.0.1:{port}"),
        ("join-address", "127.0.0.1:{port}"),
        ("page", "{port}"),
        ("metrics-port", "{port}"),
    ],
)
def test_a_port_that_is_taken_is_found_before_anything_is_made(
    setting: str, address: str, tmp_path: Path, started: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = address.format(port=port)
        with pytest.raises(
            ConfigError, match=rf"^{setting} = '?[0-9.:]*{port}'? is not allowed: Address already in use"
        ):
            started(*([] if setting == "join-address" else [f"--{setting}", place]),
                    **({"join_address": place} if setting == "join-address" else {}))  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_files_for_services_are_made_where_the_ports_are_taken(tmp_path: Path) -> None:
    """They may be those of the federation that runs, or another machine's."""
    given = ["federation", "open", str(tmp_path / "fed"), "--host", "a", "--service", "--host", "*.example.org"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = ["--fleet-api-address", f"127.0.0.1:{port}", "--page", port, "--metrics-port", port]
        done = run_command(*given, *ports)
    assert (done.code, done.err) == (0, "")


def test_a_port_that_two_settings_name_is_found_before_anything_is_made(tmp_path: Path, started: Any) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=r"join-address = '.*' is not allowed: Address already in use"):
        started("--fleet-http-address", address, join_address=address)
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_open_a_folder_at_once_one_is_refused(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def second(_: object) -> None:
        with pytest.raises(ConfigError) as error:
            started()
        refused.append(str(error.value))

    (tmp_path / "fed").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(SUPERLINK, "invoke", second)
        with suppress(IndexError):
            started()
    assert refused == [f"folder = '{tmp_path / 'fed'}' is not allowed: process {os.getpid()} has it open"]
    assert started() == (True, True), "afterwards it can be opened"


def test_one_that_is_made_while_another_waits_is_not_made_of_other_settings(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = open_module.private_folder

    def slowly(folder: Path) -> None:
        private(folder)
        (folder / "federation.toml").write_text('host = ["first.example.org"]\n')

    monkeypatch.setattr(open_module, "private_folder", slowly)
    with pytest.raises(ConfigError, match="it was opened a moment ago; open it again"):
        started()
    assert (tmp_path / "fed" / "federation.toml").read_text() == 'host = ["first.example.org"]\n'


def test_one_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path: Path, started: Any) -> None:
    """SIGKILL at each change of the folder in turn, until there is none any more."""
    for step in range(200):
        folder, made = f"fed-{step}", tmp_path / f"fed-{step}"
        if not (child := os.fork()):
            changes = [0]

            def kill(event: str, arguments: tuple[object, ...], changes: list[int] = changes, at: int = step) -> None:
                if event in ("os.mkdir", "os.rename") or (event == "open" and arguments[2] & os.O_CREAT):  # type: ignore[operator]
                    changes[0] += 1
                    if changes[0] > at:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(kill)
            started(folder=folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
        assert started(folder=folder) == (True, True)
        names = {path.name for path in made.rglob("*") if path.is_file() and not path.name.endswith(".tmp")}
        assert names == {"ca.crt", "ca.key", "server.crt", "server.key", "federation.toml", "addresses.json", "lock"}
        check_names(made / "certs" / "server.crt", ["a.example.org"])
        if os.WIFEXITED(status):
            break
    assert step > 10


def test_invitations_hold_the_address_that_a_router_has(tmp_path: Path, started: Any) -> None:
    started(fleet_published="nat.example.org:443", join_published="[2001:db8::1]:444")
    addresses = FederationFolder.find(tmp_path / "fed").addresses  # type: ignore[union-attr]
    assert (addresses.fleet, addresses.join) == ("nat.example.org:443", "[2001:db8::1]:444")
    check_names(tmp_path / "fed" / "certs" / "server.crt", ["a.example.org", "nat.example.org", "2001:db8::1"])
    assert 'fleet-published = "nat.example.org:443"' in (tmp_path / "fed" / "federation.toml").read_text()
    started()
    again = FederationFolder.find(tmp_path / "fed").addresses  # type: ignore[union-attr]
    assert (again.fleet, again.join) == (addresses.fleet, addresses.join), "the file keeps them"


@pytest.mark.parametrize("host", ["a\\nExecStartPre=/bin/evil", "a b", "a.example:9092", ""])
def test_a_file_whose_host_is_none_is_one_line(tmp_path: Path, host: str) -> None:
    """It becomes a line of the unit for systemd."""
    (tmp_path / "federation.toml").write_text(f'host = ["{host}"]\n')
    with pytest.raises(ConfigError, match=r"host = '.*' is not allowed: a host name or an IP address, without port"):
        FederationSettings.read(tmp_path / "federation.toml", OPTIONS)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "federation.toml")
    with pytest.raises(ConfigError, match=r"federation\.toml' cannot be read: it is no file"):
        FederationSettings.read(tmp_path / "federation.toml", OPTIONS)
