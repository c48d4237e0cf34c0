"""A client not admitted ends with one line that says why: asked of a real SuperLink with TLS and node keys."""

import re
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedappeal import __version__
from fedappeal.federation.certificates import make_key, write_certificates
from fedappeal.federation.nodes import PublicKey
from fedappeal.flower.node import signing
from fedappeal.protocol.keys import PROTOCOL
from fedappeal.record.reader import Record
from tests.federation.conftest import FEDAPPEAL, Client, Federation

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of another federation."""
    folder = tmp_path_factory.mktemp("other")
    write_certificates(folder, (), (), 100)
    return folder


@pytest.fixture(scope="module")
def registered(federation: Federation) -> Federation:
    assert federation.register("0").code == 0
    return federation


def refused(federation: Federation, state: Path, **changed: str | None) -> str:
    """Try to connect; return the line that the client ends with."""
    options: dict[str, str | None] = {
        "superlink": federation.superlink.fleet_address,
        "root-certificates": str(federation.certs / "ca.crt"),
        "key": str(federation.key("0")),
        "partition-id": "0",
        "state-dir": str(state),
        "connect-timeout": "0.5",
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    given = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items() if value is not None]
    done = federation.run(["client", *given])
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    return done.err.removeprefix("fedappeal: ").rstrip()


def test_each_refusal_is_one_line_that_says_which_it_was(registered: Federation, other: Path, tmp_path: Path) -> None:
    here = registered.superlink.fleet_address
    port = here.rpartition(":")[2]
    gave_up = "gave up after 0.5 s: "

    assert refused(registered, tmp_path, key=None) == (
        f"{gave_up}the SuperLink at {here} admits registered keys only, and this node has none: make one "
        f"(fedappeal key), give it (key) and give its .pub to the operator"
    )
    told = refused(registered, tmp_path, key=str(registered.key("unknown")))
    assert told.startswith(f"{gave_up}the SuperLink at {here} does not admit this node's key (key-")
    assert "it is not registered there (the operator does that: fedappeal federation register KEY.pub)" in told
    assert refused(registered, tmp_path, root_certificates=None, key=None, insecure="") == (
        f"{gave_up}the SuperLink at {here} speaks TLS: give root-certificates instead of insecure"
    )
    assert refused(registered, tmp_path, root_certificates=str(other / "ca.crt")) == (
        f"{gave_up}the certificate of {here} is not trusted by root-certificates = '{other / 'ca.crt'}': "
        f"unable to get local issuer certificate; the operator has the ca.crt that fits"
    )
    # Another way to write 127.0.0.1, which the certificate does not hold.
    assert refused(registered, tmp_path, superlink=f"127.1:{port}") == (
        f"{gave_up}the certificate of 127.1:{port} is not for the name '127.1'; it is for localhost, 127.0.0.1, ::1"
    )
    assert refused(registered, tmp_path, superlink=registered.superlink.control_address) == (
        f"{gave_up}what listens at {registered.superlink.control_address} is no Fleet API over HTTP: "
        "is the port the right one?"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        told = refused(registered, tmp_path, superlink=nobody)
    assert told == f"{gave_up}nothing listens at {nobody}: is the SuperLink running?"


@pytest.mark.parametrize(
    ("ahead", "told"), [(8.2, "8 s ahead of"), (7200.2, "7200 s (2.0 hours) ahead of"), (-330.2, "330 s behind")]
)
def test_a_clock_that_is_off_is_said_with_how_far(
    registered: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, told: str
) -> None:
    monkeypatch.setattr(signing, "now", lambda: datetime.now(UTC) + timedelta(seconds=ahead))
    assert refused(registered, tmp_path) == (
        f"gave up after 0.5 s: this machine's clock is {told} the SuperLink at {registered.superlink.fleet_address} "
        f"(5 s ahead and 300 s behind are allowed): set it"
    )


def test_a_key_in_another_format_is_refused_before_anything_is_sent(registered: Federation, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.key"
    wrong.write_bytes((registered.certs / "server.key").read_bytes())
    told = refused(registered, tmp_path, key=str(wrong))
    assert told.startswith(f"key = '{wrong}' is not allowed: it must hold an ECDSA key without a passphrase")
    make_key(tmp_path / "right.key")
    told = refused(registered, tmp_path, key=str(tmp_path / "right.pub"))
    assert "is not allowed: it must hold an ECDSA key" in told


def patched_client(federation: Federation, patch: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Start a client whose installation is changed by a line of Python."""
    code = f"import sys, fedappeal; {patch}; from fedappeal.cli.main import main; main()"
    monkeypatch.setattr("tests.federation.conftest.FEDAPPEAL", [sys.executable, "-c", code])
    client = federation.client(0)
    monkeypatch.setattr("tests.federation.conftest.FEDAPPEAL", FEDAPPEAL)
    client.wait_for("connected to")
    return client


def test_a_client_of_another_protocol_is_refused_with_a_line_on_both_sides(
    registered: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = "import fedappeal.protocol.keys; fedappeal.protocol.keys.PROTOCOL = 999"
    client = patched_client(registered, patch, monkeypatch)
    folder = registered.folder / "other-protocol"
    done = registered.fedappeal("submit", "--clients", "1", "--start-timeout", "4", "--out", str(folder))
    assert done.code == 1
    told = f"this client speaks protocol 999 (fedappeal {__version__}), the run {PROTOCOL}"
    client.wait_for(told)
    assert told in done.err
    [reason] = [line["reason"] for line in Record(folder).events if line["event"] == "refused"]
    assert told in reason
    assert client.end() == 0


def test_a_client_of_another_version_joins_where_it_speaks_the_same_protocol(
    registered: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = "from fedappeal.system import versions; versions.FEDAPPEAL = '0.0.9'"
    client = patched_client(registered, patch, monkeypatch)
    folder = registered.folder / "other-version"
    options = ["--clients", "1", "--rounds", "1", "--local-steps", "1", "--set", "solo.steps=1", "--out", str(folder)]
    done = registered.fedappeal("submit", *options)
    assert done.code == 0, done.out + done.err
    assert [line["joined"] for line in Record(folder).history] == [1]
    assert client.end() == 0


def test_a_client_whose_data_do_not_fit_is_named_and_does_not_end_the_run(
    registered: Federation, tmp_path: Path
) -> None:
    assert registered.register("2").code == 0
    table = tmp_path / "patients.csv"
    table.write_text(
        "\n".join([",".join([*map("p{}".format, range(64)), "digit"]), *[",".join(["1"] * 64 + ["77"])] * 20])
    )
    own = ("--partition-id=-1", "--data", str(table), "--label", "digit")
    clients = [registered.client(0), registered.client(2, *own)]
    for client in clients:
        client.wait_for("connected to")
    folder = registered.folder / "bad-data"
    short = ("--local-steps", "1", "--set", "solo.steps=1", "--rounds", "1")
    options = ("--clients", "2", "--min-clients", "1", *short, "--out", str(folder))
    done = registered.fedappeal("submit", *options)
    assert done.code == 0, done.out + done.err
    key = PublicKey.read(registered.key("2").with_suffix(".pub")).client_id
    assert f"client 2 ({key}): data is refused: labels out of range\n" in done.out
    assert [line["joined"] for line in Record(folder).history] == [1]
    (event,) = [line for line in Record(folder).events if line["event"] == "refused"]
    assert (event["client"], event["problem"]) == (key, "labels")
    assert "patients" not in done.out + str(event)
    clients[1].wait_for("patients.csv' is not allowed: row 1 (line 2), column digit: label '77': 0 to 9")
    assert [client.end() for client in clients] == [0, 0]


def test_commands_of_the_operator_say_why_they_reach_nothing(registered: Federation, other: Path) -> None:
    address = registered.superlink.control_address
    for given, told in (
        (["--superlink", address], "speaks TLS: give root-certificates"),
        (["--superlink", "127.0.0.1:1"], "is not reachable: [Errno 111] Connection refused"),
        (
            ["--superlink", address, "--root-certificates", str(other / "ca.crt")],
            "is not reachable: [SSL: CERTIFICATE_VERIFY_FAILED]",
        ),
    ):
        done = registered.run(["federation", "list", *given])
        assert done.code == 1
        assert done.err.startswith(f"fedappeal: the SuperLink at {given[1]} {told}")
        assert done.err.count("\n") == 1
    for given, told in (
        (["--superlink", "host"], "superlink = 'host' is not allowed: HOST:PORT"),
        (["--superlink", "http://host:1"], "superlink = 'http://host:1' is not allowed"),
        (["--superlink", address, "--root-certificates", "/no"], "root-certificates = '/no' is not allowed: No such"),
        (["--superlink", address, "--root-certificates", __file__], "it holds no certificate in PEM"),
    ):
        done = registered.run(["federation", "list", *given])
        assert done.code == 2
        assert told in done.err


def test_keys_are_registered_once_and_struck_off_for_good(registered: Federation) -> None:
    done = registered.register("0", "1")
    assert [line.split("  ")[1] for line in done.out.splitlines()] == ["already registered", "registered"]
    listed = registered.fedappeal("federation", "list").out.splitlines()
    assert re.split("  +", listed[0].strip()) == [
        "name",
        "client-id",
        "status",
        "since (UTC)",
        "last seen (UTC)",
        "node id",
    ]
    # One that was never online, by its name.
    assert registered.fedappeal("federation", "unregister", "1").code == 0
    done = registered.fedappeal("federation", "unregister", "1")
    assert done.code == 2
    assert "node = '1' is not allowed: no registered node is called so" in done.err
    done = registered.register("0", "1")
    assert done.code == 1
    assert done.out.endswith("already registered  (0)\n")
    assert "(1) was unregistered once, and this SuperLink never takes a key back" in done.err
