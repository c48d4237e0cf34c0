"""Why a SuperLink cannot be reached, asked of real gRPC servers (a SuperLink's Fleet API is one)."""

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from client.fleet.probe import probe
from client.settings import GRPC, HTTP, Connection
from fedappeal.flower.node.fleet import NotConnected
from tests.client import certificates
from tests.client.certificates import TLS


def reason_of(connection: Connection, timeout: float = 3.0) -> str | None:
    """Return why a SuperLink cannot be reached; None where it can."""
    try:
        probe(connection, timeout)
    except NotConnected as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TLS:
    return certificates.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def servers(tls: TLS) -> Iterator[tuple[int, int]]:
    """Ports of a gRPC server in plaintext and of one with TLS."""
    plain, secure = grpc.server(ThreadPoolExecutor(1)), grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.certificate.read_bytes())])
    ports = plain.add_insecure_port("127.0.0.1:0"), secure.add_secure_port("127.0.0.1:0", credentials)
    plain.start()
    secure.start()
    yield ports
    plain.stop(None)
    secure.stop(None)


def test_what_works_is_not_complained_about(servers: tuple[int, int], tls: TLS) -> None:
    plain, secure = servers
    assert probe(Connection(superlink=f"127.0.0.1:{plain}", insecure=True)) == GRPC
    assert probe(Connection(superlink=f"127.0.0.1:{secure}", root_certificates=str(tls.ca))) == GRPC


def test_plaintext_and_tls_are_told_apart(servers: tuple[int, int], tls: TLS) -> None:
    plain, secure = servers
    reason = reason_of(Connection(superlink=f"127.0.0.1:{secure}", insecure=True))
    assert reason == f"the SuperLink at 127.0.0.1:{secure} speaks TLS: give root-certificates instead of insecure"
    reason = reason_of(Connection(superlink=f"127.0.0.1:{plain}", root_certificates=str(tls.ca)))
    assert reason == f"what listens at 127.0.0.1:{plain} does not speak TLS (plaintext needs insecure)"


def test_a_certificate_is_refused_for_its_issuer_name_or_date(
    servers: tuple[int, int], tls: TLS, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{servers[1]}"
    other = certificates.make(tmp_path / "other")
    reason = reason_of(Connection(superlink=address, root_certificates=str(other.ca)))
    assert reason is not None
    assert f"of {address} is not trusted by root-certificates = '{other.ca}'" in reason
    reason = reason_of(Connection(superlink=address))
    assert reason is not None
    assert "is not trusted by this system's certificates (no root-certificates given)" in reason
    reason = reason_of(Connection(superlink=f"localhost:{servers[1]}", root_certificates=str(tls.ca)))
    assert reason is not None
    assert reason == f"the certificate of localhost:{servers[1]} is not for the name 'localhost'; it is for 127.0.0.1"
    no_certificate = tmp_path / "empty.crt"
    no_certificate.write_text("hello")
    reason = reason_of(Connection(superlink=address, root_certificates=str(no_certificate)))
    assert reason == f"root-certificates = '{no_certificate}' holds no certificate in PEM format"


def test_dates_of_a_server_and_of_its_ca_are_told_apart(tmp_path: Path) -> None:
    old = certificates.make(tmp_path / "old", days=-3, ca_days=1)
    expired, early = (
        certificates.make(tmp_path / "expired", days=-3),
        certificates.make(tmp_path / "early", first_day=2),
    )
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(old.key.read_bytes(), old.certificate.read_bytes())])
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    server.start()
    moment = r"20\d\d-\d\d-\d\d \d\d:\d\d UTC"
    try:
        for ca, wanted in (
            (old.ca, f"the certificate of {address} expired at {moment}; this clock says {moment}"),
            (expired.ca, f"the certificate of root-certificates = '{expired.ca}' expired at {moment}; .* new one"),
            (early.ca, f"the certificate of .*'{early.ca}' is not valid before {moment}; .* set the clock right.*"),
        ):
            reason = reason_of(Connection(superlink=address, root_certificates=str(ca)))
            assert reason is not None
            assert re.fullmatch(wanted, reason)
    finally:
        server.stop(None)


def test_nothing_there_nobody_known_and_nobody_answering() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        reason = reason_of(Connection(superlink=f"127.0.0.1:{port}", insecure=True))
        assert reason == f"nothing listens at 127.0.0.1:{port}: is the SuperLink running?"
        silent.listen()
        reason = reason_of(Connection(superlink=f"127.0.0.1:{port}", insecure=True), timeout=0.3)
        assert reason == f"127.0.0.1:{port} does not answer (a firewall, or the wrong host?)"
    reason = reason_of(Connection(superlink="no.such.host.invalid:9092", insecure=True))
    assert reason == "the host name 'no.such.host.invalid' is not known"


@pytest.mark.parametrize(("answer", "spoken"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", HTTP), (b"220 mail\r\n", None)])
def test_what_speaks_http_may_be_a_superlink_and_another_server_is_none(answer: bytes, spoken: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                peer, _ = server.accept()
                peer.recv(100)
                peer.sendall(answer)
                peer.close()

        threading.Thread(target=serve, daemon=True).start()
        connection = Connection(superlink=f"127.0.0.1:{server.getsockname()[1]}", insecure=True)
        if spoken:
            assert probe(connection, timeout=0.5) == spoken
            reason = reason_of(connection.model_copy(update={"transport": GRPC}), timeout=0.5)
            assert reason == f"what listens at {connection.superlink} speaks http, and transport = 'grpc'"
        else:
            reason = reason_of(connection, timeout=0.5)
            assert reason is not None
            assert "is no Fleet API in plaintext" in reason


def test_a_server_with_tls_that_is_no_grpc_server_is_not_taken_for_a_superlink(tls: TLS) -> None:
    """As the SuperLink's own port 8000, which speaks HTTP over the same certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with contextlib.suppress(OSError), context.wrap_socket(peer, server_side=True) as secure:
                secure.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        reason = reason_of(Connection(superlink=f"127.0.0.1:{port}", root_certificates=str(tls.ca)))
        thread.join(5)
    assert reason == f"what listens at 127.0.0.1:{port} is no Fleet API: is the port the right one?"


def test_the_ca_is_found_in_the_home_folder_and_missed_by_its_own_name(
    servers: tuple[int, int], tls: TLS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tls.ca.parent))
    connection = Connection(superlink=f"127.0.0.1:{servers[1]}", root_certificates="~/ca.crt")
    assert probe(connection) == GRPC
    gone = connection.model_copy(update={"root_certificates": "~/gone.crt"})  # since the settings were checked
    assert reason_of(gone) == "root-certificates = '~/gone.crt' cannot be read: No such file or directory"


def test_a_proxy_that_is_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:9")
    assert reason_of(Connection(superlink="b.example:1", insecure=True)) == (
        "b.example:1 is not reachable by the proxy 127.0.0.1:9 (http_proxy): Connection refused; "
        "no_proxy names what is reached without it"
    )
    reason = reason_of(Connection(superlink="b.example:1"))
    assert reason == "b.example:1 is not reachable: https_proxy = 'socks5://...' is not allowed: http://HOST:PORT"
