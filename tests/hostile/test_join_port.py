"""Promise: no stranger joins by guessing, delays a right invitation by 10 s, or has one used twice or shown to it.

The port is real (TLS, sockets), the SuperLink behind it is not.
"""

import contextlib
import datetime
import json
import os
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from client.fleet import joining
from client.fleet.joining import JoinPort
from client.settings import AppSettings, NodeSettings
from client.state.membership import KEY
from fedappeal.cli import join
from fedappeal.federation import certificates, join_server
from fedappeal.federation.certificates import fingerprint_of, write_certificates
from fedappeal.federation.invitations import FILE, Invitations
from fedappeal.federation.join_server import JoinApp, _LatestAnswers
from fedappeal.flower.node.signing import public_key_bytes
from fedappeal.flower.superlink.connections import serve_http
from fedappeal.protocol.invitation import Invitation
from fedappeal.protocol.proof import client_id_of
from fedappeal.settings.config import ConfigError
from fedappeal.system import files

MOST_DELAY = 10.0


class FakeSuperLink:
    """Registers keys in a list."""

    def __init__(self) -> None:
        self.registered: list[bytes] = []
        self.asked_for_runs = 0

    def runs(self) -> list[Any]:
        self.asked_for_runs += 1
        return [SimpleNamespace(task="digits", strategy="maxfl", ended=False)]


class Port:
    """A federation's port for invitations.

    Attributes:
        address: where it is.
        invitations: its invitations.
        superlink: what it registers keys at.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.certs = folder / "certs"
        write_certificates(self.certs, [], [], 30)
        self.invitations, self.superlink = Invitations(folder), FakeSuperLink()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"

        def register(superlink: Any, key: Any) -> str:
            superlink.registered.append(key.pem)
            return "registered"

        monkeypatch.setattr(join_server, "register", register)
        app = JoinApp(self.invitations, self.superlink, "fed:9092", (self.certs / "ca.crt").read_bytes())  # type: ignore[arg-type]
        pair = [str(self.certs / name) for name in ("server.crt", "server.key")]
        self.server = serve_http(app, listener, *pair)

    def invite(self, name: str = "anna", uses: int = 1) -> Invitation:
        invitation = Invitation.new(self.address, fingerprint_of(self.certs / "ca.crt"))
        self.invitations.add(name, invitation.secret, uses, 600)
        return invitation


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    running = Port(tmp_path, monkeypatch)
    yield running
    running.server.should_exit = running.server.force_exit = True


def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def redeem(invitation: Invitation, by: ec.EllipticCurvePrivateKey | None = None) -> dict[str, Any]:
    """Redeem as `fedappeal join` does."""
    join = JoinPort(invitation)
    join.verify()
    return dict(join.redeem(by or key()))


def refusal(invitation: Invitation, by: ec.EllipticCurvePrivateKey | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        redeem(invitation, by)
    (line,) = str(refused.value).splitlines()
    return line


@contextlib.contextmanager
def attackers(number: int, attack: Callable[[], None]) -> Iterator[None]:
    """Attack from threads during the block."""
    ended = threading.Event()

    def keep_on() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError, ConfigError, ValueError):
                attack()

    threads = [threading.Thread(target=keep_on) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_replay_by_another_key_finds_it_spent_and_the_same_key_gets_its_answer_again(port: Port) -> None:
    invitation, mine = port.invite(), key()
    expected = client_id_of(public_key_bytes(mine.public_key()))
    answers = [redeem(invitation, mine) for _ in range(2)]
    assert answers == [{"superlink": "fed:9092", "name": "anna", "client-id": expected}] * 2
    assert set(port.superlink.registered) == {public_key_bytes(mine.public_key())}
    assert "this invitation has been used: ask the operator for a new one" in refusal(invitation)


def test_a_holder_that_asks_without_end_reaches_the_superlink_a_few_times(port: Port) -> None:
    """Its own invitation is right, so no guess is counted; what it asks for is kept for five seconds."""
    invitation, mine = port.invite(), key()
    join, began = JoinPort(invitation), time.monotonic()
    join.verify()
    for _ in range(30):
        assert join.look(mine) == {"name": "anna", "runs": [{"task": "digits", "strategy": "maxfl"}]}
        join.redeem(mine)
    most = 1 + (time.monotonic() - began) // join_server._ASKED_EVERY
    assert 1 <= port.superlink.asked_for_runs <= most
    assert 1 <= len(port.superlink.registered) <= most


def test_kept_answers_are_of_their_question_fresh_and_few() -> None:
    now, asked = [10.0], [0]

    def ask() -> int:
        asked[0] += 1
        return asked[0]

    kept = _LatestAnswers[int](lambda: now[0])
    assert [kept.get(b"a", ask), kept.get(b"a", ask), kept.get(b"b", ask)] == [1, 1, 2]
    now[0] += 5.0
    assert kept.get(b"a", ask) == 3
    with pytest.raises(ZeroDivisionError):
        kept.get(b"c", lambda: 1 // 0)
    assert kept.get(b"c", ask) == 4, "what failed is asked again"
    for number in range(1000):
        kept.get(str(number).encode(), ask)
    assert len(kept._answers) == 256


def test_an_expired_one_admits_nobody_but_the_key_that_used_it(port: Port) -> None:
    invitation, mine = port.invite(uses=2), key()
    answer = redeem(invitation, mine)
    with contextlib.closing(sqlite3.connect(port.certs.parent / FILE)) as database, database:
        database.execute("UPDATE invitation SET expires = 1")
    assert "this invitation has expired: ask the operator for a new one" in refusal(invitation)
    join = JoinPort(invitation)
    join.verify()
    with pytest.raises(ConfigError, match="has expired"):
        join.look(None)
    assert redeem(invitation, mine) == answer, "an answer can be lost"
    assert set(port.superlink.registered) == {public_key_bytes(mine.public_key())}


def test_a_file_that_cannot_be_read_is_one_line_and_the_port_answers_all_the_same(port: Port) -> None:
    invitation = port.invite()
    file = port.certs.parent / FILE
    file.write_text("junk" * 100)
    assert "the federation does not answer at present: try again in a minute" in refusal(invitation)
    with pytest.raises(
        ConfigError, match=r"file '.*invitations\.db' cannot be read or written: file is not a database"
    ):
        port.invitations.all()
    file.unlink()
    Invitations(file.parent)
    assert "does not know this invitation" in refusal(invitation)


@pytest.mark.parametrize("uses", [1, 3])
def test_of_ten_clients_at_once_as_many_win_as_the_invitation_says(uses: int, port: Port) -> None:
    invitation, lost = port.invite(uses=uses), []

    def race(_: int) -> None:
        try:
            redeem(invitation)
        except ConfigError as error:
            lost.append(str(error))

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(race, range(10)))
    assert len(lost) == 10 - uses
    assert all("has been used" in line for line in lost), lost
    assert len(set(port.superlink.registered)) == uses


def test_a_flood_of_guesses_admits_nobody_and_delays_a_right_one_by_less_than_ten_seconds(port: Port) -> None:
    invitation = port.invite()

    def guess() -> None:
        redeem(Invitation.new(port.address, invitation.fingerprint))

    with attackers(40, guess):
        time.sleep(2.0)
        began = time.monotonic()
        redeem(invitation)
        assert time.monotonic() - began < MOST_DELAY
    assert len(port.superlink.registered) == 1
    assert "does not know this invitation" in refusal(Invitation.new(port.address, invitation.fingerprint))


def test_a_thousand_open_connections_keep_nobody_out(port: Port) -> None:
    host, number = port.address.split(":")
    invitation, context = port.invite(), joining.unverified_context(("http/1.1",))
    with contextlib.ExitStack() as held:
        for count in range(1000):
            raw = held.enter_context(socket.create_connection((host, int(number)), 20))
            if count % 10 == 0:  # with TLS, and half a request; the others say nothing at all
                secure = held.enter_context(context.wrap_socket(raw))
                secure.sendall(b"POST /redeem HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n{")
        began = time.monotonic()
        redeem(invitation)
        assert time.monotonic() - began < MOST_DELAY


@pytest.mark.parametrize("headers", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked", b"Content-Length: x"])
def test_a_megabyte_of_garbage_is_not_read(headers: bytes, port: Port) -> None:
    host, number = port.address.split(":")
    invitation = port.invite()
    raw = socket.create_connection((host, int(number)), 20)
    received, sent = b"", 0
    with joining.unverified_context(("http/1.1",)).wrap_socket(raw) as secure:
        with contextlib.suppress(OSError):
            secure.sendall(b"POST /redeem HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n\r\n")
            while sent < 2**20:
                part = b"1000\r\n" + b"\xff" * 4096 + b"\r\n" if b"chunked" in headers else b"\xff" * 4096
                secure.sendall(part)
                sent += len(part)
        with contextlib.suppress(OSError):
            received = secure.recv(100)
    assert sent < 2**20 or received.startswith(b"HTTP/1.1 4"), received
    assert not port.superlink.registered
    redeem(invitation)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"invitation": 5}', b'{"invitation": "zz"}', b"[" * 900, b'{"invitation": ""}']
)
def test_a_request_that_is_none_changes_nothing(body: bytes, port: Port) -> None:
    invitation, join = port.invite(), JoinPort(port.invite("bob"))
    join.verify()
    for path in ("/look", "/redeem"):
        _, content = join._ask(joining.trusting(join.ca), "POST", path, body.decode())
        assert b"redeem" not in content
    assert not port.superlink.registered
    redeem(invitation)


def test_a_forged_fingerprint_and_a_swapped_certificate_learn_no_secret(port: Port, tmp_path: Path) -> None:
    invitation = port.invite()
    forged = replace(invitation, fingerprint=bytes(32))
    assert "another certificate than the invitation names comes from" in refusal(forged)
    # One in between, which hands out the federation's own CA certificate, and answers by a certificate of its own.
    seen: list[bytes] = []
    write_certificates(tmp_path / "others", [], [], 30)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "others" / "server.crt", tmp_path / "others" / "server.key")
    ca = (port.certs / "ca.crt").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as listener, between(listener, context, ca, seen):
        swapped = replace(invitation, address=f"127.0.0.1:{listener.getsockname()[1]}")
        assert "another certificate (unable to get local issuer certificate) comes from" in refusal(swapped)
    assert [line.split()[1] for line in seen] == [b"/ca"]
    assert not port.superlink.registered
    redeem(invitation)


@contextlib.contextmanager
def between(
    listener: socket.socket,
    context: ssl.SSLContext | None,
    ca: bytes,
    seen: list[bytes],
    date: str = "",
    endless: bytes = b"",
) -> Iterator[None]:
    """Answer each request by a CA's certificate, or in parts that go on for two seconds, and keep what was asked."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                with contextlib.suppress(OSError), raw if context is None else context.wrap_socket(raw, True) as one:
                    if request := one.recv(4096):
                        seen.append(request)
                        for _ in range(40 if endless else 0):
                            one.sendall(endless)
                            time.sleep(0.05)
                        dated = f"Date: {date}\r\n".encode() if date else b""
                        one.sendall(b"HTTP/1.1 200 OK\r\n" + dated + b"Content-Length: %d\r\n\r\n" % len(ca) + ca)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.parametrize("endless", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: "])
def test_an_answer_that_never_ends_is_given_up(endless: bytes, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_TRIES_FOR", 0.5)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(port.certs / "server.crt", port.certs / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener, between(listener, context, b"", [], endless=endless):
        address, began = f"127.0.0.1:{listener.getsockname()[1]}", time.monotonic()
        assert f"{address} does not answer" in refusal(replace(port.invite(), address=address))
        assert time.monotonic() - began < 1.8


@pytest.mark.parametrize("date", ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2359"])
def test_a_date_that_is_none_is_not_looked_at(date: str, port: Port) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(port.certs / "server.crt", port.certs / "server.key")
    ca = (port.certs / "ca.crt").read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as listener, between(listener, context, ca, [], date):
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(ConfigError):  # a date of long ago is one, which the clock is not at
            JoinPort(replace(port.invite(), address=address)).verify()


def test_a_port_that_opens_a_moment_later_is_waited_for(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("_TIMEOUT", "_TRIES_FOR"):
        monkeypatch.setattr(joining, setting, 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        threading.Timer(1.5, listener.listen).start()
        later = replace(port.invite(), address=f"127.0.0.1:{listener.getsockname()[1]}")
        assert "does not answer" in refusal(later), "it listens"


def test_of_two_joins_at_once_one_is_refused_and_the_key_on_disk_is_the_registered_one(
    port: Port, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invitation, folder, write = port.invite(), tmp_path / "state", files.replace_file

    def slow(path: Path, *rest: Any, **named: Any) -> None:
        time.sleep(1.0 if path.name == KEY else 0.0)
        write(path, *rest, **named)

    monkeypatch.setattr(certificates, "replace_file", slow)
    node = NodeSettings.parse({"partition-id": 0, "state-dir": str(folder)})

    def become_member(_: int) -> str:
        try:
            join._become_member(invitation, folder, node, AppSettings(), {})
        except ConfigError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        said = sorted(threads.map(become_member, range(2)))
    assert said == [
        "",
        f"state-dir = '{folder}' is not allowed: process {os.getpid()} uses it; try again when it has ended",
    ]
    kept: Any = load_ssh_private_key((folder / KEY).read_bytes(), None)
    assert set(port.superlink.registered) == {public_key_bytes(kept.public_key())}
    assert "became a member's a moment ago" in become_member(2)


@pytest.mark.parametrize(("ahead", "said"), [(86400, "ahead of"), (-86400, "behind")])
def test_a_clock_that_is_wrong_by_a_day_is_said_before_anything_is_shown(
    ahead: float, said: str, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    invitation = port.invite()
    now = datetime.datetime.now().timestamp() + ahead
    here = SimpleNamespace(time=lambda: now, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(joining, "time", here)
    assert "this machine's clock is 86" in (line := refusal(invitation))
    assert f"(24.0 hours) {said} the SuperLink" in line
    assert not port.superlink.registered


def test_what_is_met_on_the_way_is_one_line_that_says_what_to_do(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    invitation = port.invite()
    port.invitations.withdraw("anna")
    assert "was withdrawn: ask the operator for a new one" in refusal(invitation)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(joining, "_OPENS_WITHIN", 0.1)
    assert "nothing listens at" in refusal(replace(invitation, address=nobody))
    assert "the host name 'no.such.host.invalid' is not known" in refusal(
        replace(invitation, address="no.such.host.invalid:9094")
    )
    # What answers in plaintext, as a captive portal.
    with socket.create_server(("127.0.0.1", 0)) as listener, between(listener, None, b"<html>", []):
        line = refusal(replace(invitation, address=f"127.0.0.1:{listener.getsockname()[1]}"))
        assert "what is no federation answers at" in line
        assert "a proxy is in between" in line
    # A proxy that is named and is not there.
    monkeypatch.setenv("https_proxy", f"http://{nobody}")
    line = refusal(replace(invitation, address="fed.example.org:9094"))
    assert f"not reachable by the proxy {nobody} (https_proxy)" in line


def test_an_answer_that_is_hostile_is_bounded(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with the right certificate may still answer anything."""
    invitation = port.invite()
    for content, expected in [
        (b"[]", "no federation's answer"),
        (b"[" * 10**5, "no federation's answer"),
        (json.dumps({"refused": "\x1b[31m" + "x" * 10**4}).encode(), "the federation refused: "),
    ]:
        join = JoinPort(invitation)
        join.ca = (port.certs / "ca.crt").read_bytes()
        monkeypatch.setattr(join, "_ask", lambda *_, content=content: ({"date": formatdate()}, content))
        with pytest.raises(ConfigError, match=expected) as refused:
            join.look(None)
        assert len(str(refused.value)) < 300
        assert str(refused.value).isprintable()
