"""What `fedappeal certs` and `fedappeal key` make, used in a real TLS handshake and read by OpenSSH's rules."""

import datetime
import hashlib
import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from client.fleet.activation import Identity
from client.settings import Connection
from fedappeal.cli.commands import cli
from fedappeal.federation.certificates import make_key, write_certificates
from fedappeal.federation.nodes import PublicKey
from fedappeal.settings.config import ConfigError

runner = CliRunner()


def write(folder: Path, hosts: tuple[str, ...] = (), clients: tuple[str, ...] = (), days: int = 100) -> list[bool]:
    """Make them; return which were kept: CA, server, clients."""
    return [made.kept for made in write_certificates(folder, hosts, clients, days)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(folder: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    return [str(n.value) for n in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def test_commands_at_once_make_halves_that_fit(tmp_path: Path) -> None:
    for number in range(10):
        folder, begin = tmp_path / str(number), threading.Barrier(3)

        def make(days: int, folder: Path = folder, begin: threading.Barrier = begin) -> list[bool]:
            begin.wait(10)
            return write(folder, clients=("anna",), days=days)

        with ThreadPoolExecutor(3) as pool:
            kept = list(pool.map(make, (100, 200, 300)))
        assert sum(not each[0] for each in kept) == sum(not each[2] for each in kept) == 1
        assert write(folder, clients=("anna",)) == [True] * 3
        key = load_ssh_private_key((folder / "clients" / "anna.key").read_bytes(), None)
        assert key.public_key() == load_ssh_public_key((folder / "clients" / "anna.pub").read_bytes())


def handshake(folder: Path, name: str, ca: Path) -> None:
    """Connect by a strict client that trusts the CA alone; raises what goes wrong."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


def test_a_client_that_trusts_the_ca_reaches_the_server_by_its_names_only(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    assert write(ours, ("superlink", "10.1.2.3", "*.example.org")) == [False, False]
    write(other)
    for name in ("superlink", "10.1.2.3", "a.example.org", "localhost", "127.0.0.1", "::1"):
        handshake(ours, name, ours / "ca.crt")
    for name in ("elsewhere", "10.1.2.4", "example.org"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            handshake(ours, name, ours / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        handshake(ours, "localhost", other / "ca.crt")


def test_private_files_are_their_owners_alone(tmp_path: Path) -> None:
    write(tmp_path, clients=("a",))
    modes = {str(p.relative_to(tmp_path)): stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*") if p.is_file()}
    private = {"ca.key", "server.key", "clients/a.key"}
    assert set(modes) == private | {"ca.crt", "server.crt", "clients/a.pub"}
    assert all(modes[name] == 0o600 for name in private)


def test_what_is_there_is_kept_and_what_is_missing_is_added(tmp_path: Path) -> None:
    write(tmp_path, ("one",), ("a",))
    first = contents(tmp_path)
    assert write(tmp_path, ("one",), ("a",)) == [True, True, True]
    assert write(tmp_path) == [True, True]
    assert contents(tmp_path) == first
    # A new host: the same CA and the same server key, a certificate for the old names and the new.
    assert write(tmp_path, ("two",), ("b",)) == [True, False, False]
    second = contents(tmp_path)
    assert {name for name in first if first[name] != second[name]} == {"server.crt"}
    assert set(second) - set(first) == {"clients/b.key", "clients/b.pub"}
    assert names(tmp_path) == ["localhost", "127.0.0.1", "::1", "one", "two"]
    handshake(tmp_path, "one", tmp_path / "ca.crt")


def test_a_certificate_is_renewed_in_its_last_30_days(tmp_path: Path) -> None:
    write(tmp_path, days=29)
    assert write(tmp_path, days=100) == [True, False]
    assert write(tmp_path, days=100) == [True, True]
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=99) < left <= datetime.timedelta(days=100)


def test_a_server_certificate_of_another_ca_is_replaced(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    write(ours)
    write(other)
    for name in ("server.crt", "server.key"):
        (ours / name).write_bytes((other / name).read_bytes())
    assert write(ours) == [True, False]
    handshake(ours, "localhost", ours / "ca.crt")


def test_a_server_certificate_without_names_is_replaced(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "server.crt").write_bytes((tmp_path / "ca.crt").read_bytes())  # a CA's certificate names no host
    assert write(tmp_path, ("superlink",)) == [True, False]
    assert names(tmp_path) == ["localhost", "127.0.0.1", "::1", "superlink"]
    handshake(tmp_path, "superlink", tmp_path / "ca.crt")


def test_a_clients_key_is_one_that_flower_takes(tmp_path: Path) -> None:
    made = make_key(tmp_path / "deep" / "client.key", "alice's laptop")
    assert not made.kept
    key = load_ssh_private_key(made.path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    public = made.path.with_suffix(".pub")
    assert load_ssh_public_key(public.read_bytes()) == key.public_key()
    assert public.read_text().endswith(" alice's laptop\n")
    # The id that the operator reads off the .pub is the one that the client goes by.
    read = PublicKey.read(public)
    ours = Identity.of(Connection(superlink="h:1", key=str(made.path)))
    assert read.client_id == ours.client_id == "key-" + hashlib.sha256(read.pem).hexdigest()[:16]
    assert read.name == "alice's laptop"
    assert make_key(made.path).kept
    public.unlink()
    assert make_key(made.path, "again").kept
    assert PublicKey.read(public) == PublicKey(read.pem, "again")


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "a.key").write_text("mine")
    with pytest.raises(ConfigError, match=r"a\.key' is there and is not overwritten, but is no client's key"):
        write(tmp_path, clients=("a",))
    assert (tmp_path / "clients" / "a.key").read_text() == "mine"
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt' cannot be read as a certificate"):
        write(tmp_path)
    other = tmp_path / "other"
    write(other)
    (tmp_path / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.key' is not the key of"):
        write(tmp_path)


@pytest.mark.parametrize("host", ["http://a", "a:9092", "", "a b", "-a", "a..b"])
def test_a_host_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="host = "):
        write(tmp_path / "new", (host,))
    with pytest.raises(ConfigError, match=r"client = '\.\./a'"):
        write(tmp_path / "new", clients=("../a",))
    with pytest.raises(ConfigError, match="days = 0"):
        write(tmp_path / "new", days=0)
    assert not (tmp_path / "new").exists()


def test_the_commands_say_what_they_made(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    given = ["certs", str(folder), "--host", "superlink", "--client", "alice"]
    for verb in ("made", "kept"):
        done = runner.invoke(cli, given)
        assert done.exit_code == 0
        lines = done.output.splitlines()
        assert [line.split()[:2] for line in lines] == [
            [verb, str(folder / name)] for name in ("ca.crt", "server.crt", "clients/alice.key")
        ]
        assert "(for localhost, 127.0.0.1, ::1, superlink; until 20" in lines[1]
    done = runner.invoke(cli, ["key", str(tmp_path / "my.key")])
    assert done.exit_code == 0
    assert done.output.split()[:2] == ["made", str(tmp_path / "my.key")]


@pytest.mark.parametrize("content", ["", "hello", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA"])
def test_a_file_that_holds_no_public_key_of_a_client_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.pub").write_text(content)
    with pytest.raises(ConfigError, match=r"a\.pub' is not allowed: the \.pub file of an ECDSA key"):
        PublicKey.read(tmp_path / "a.pub")
    with pytest.raises(ConfigError, match=r"b\.pub' is not allowed: No such file"):
        PublicKey.read(tmp_path / "b.pub")
