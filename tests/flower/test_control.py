"""The Control API of a real SuperLink: each call, each of Flower's words that is compared, and each refusal."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import Status, SubStatus
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.supercore.constant import NodeStatus
from flwr.supercore.error import ApiErrorCode, FlowerError

from fedappeal.federation.superlink import SuperLink
from fedappeal.flower import bundle, control
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.node.signing import public_key_bytes
from fedappeal.protocol.proof import client_id_of
from tests.client import certificates
from tests.warm import warm_superlinks


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    folder = tmp_path_factory.mktemp("control")
    (folder / "apps").mkdir()
    (folder / "apps" / "waiting_app.py").write_text(
        "import time\nfrom flwr.serverapp import ServerApp\napp = ServerApp()\n"
        "@app.main()\ndef main(grid, context):\n    time.sleep(context.run_config['seconds'])\n"
    )
    tls = certificates.make(folder / "tls")
    path = {"PYTHONPATH": str(folder / "apps")}
    with warm_superlinks(), SuperLink(folder / "superlink", tls.options, environment=path) as running:
        yield running


def ca_of(superlink: SuperLink) -> bytes:
    return certificates.TLS(superlink.folder.parent / "tls").ca.read_bytes()


@pytest.fixture
def api(superlink: SuperLink) -> control.Control:
    return control.Control(superlink.control_address, ca_of(superlink))


def fab(serverapp: str = "waiting_app:app") -> bytes:
    return bundle.build_fab({"seconds": 4.0, "strategy": "", "task": "", "out": ""}, serverapp=serverapp)


def wait_for(api: control.Control, run_id: int, status: str) -> control.ListedRun:
    deadline = time.monotonic() + 120
    while (found := api.run_status(run_id)).status != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_flowers_words_are_those_that_are_written_down() -> None:
    assert (Status.PENDING, Status.RUNNING, Status.FINISHED) == ("pending", "running", "finished")
    assert (SubStatus.COMPLETED, SubStatus.FAILED, SubStatus.STOPPED) == ("completed", "failed", "stopped")
    words = (NodeStatus.REGISTERED, NodeStatus.ONLINE, NodeStatus.OFFLINE, NodeStatus.UNREGISTERED)
    assert words == ("registered", "online", "offline", "unregistered")


@pytest.mark.e2e
def test_a_run_completes_fails_or_is_stopped(api: control.Control) -> None:
    completing = api.start_run(fab(), {"seconds": 0.0, "strategy": "maxfl", "task": "digits", "out": "/runs/one"})
    failing = api.start_run(fab("no_such_module:app"), {})
    waiting = api.start_run(fab(), {})
    assert not wait_for(api, waiting, "running").finished
    assert api.stop_run(waiting)
    stopped = api.run_status(waiting)
    assert (stopped.status, stopped.finished, stopped.completed) == ("stopped", True, False)
    completed = wait_for(api, completing, "completed")
    assert completed.completed
    assert completed.details == ""
    known = {run.run_id: run for run in api.runs()}
    assert list(known)[-3:] == [completing, failing, waiting]
    first, last = known[completing], known[waiting]
    assert (first.strategy, first.task, first.folder) == ("maxfl", "digits", "/runs/one")
    assert (last.strategy, last.task, last.folder) == ("", "", "")
    assert (first.status, last.status) == ("completed", "stopped")
    assert known[completing].ended > known[completing].started
    failed = wait_for(api, failing, "failed")
    assert failed.finished
    assert not failed.completed
    assert failed.details


@pytest.mark.e2e
def test_a_node_goes_through_all_of_flowers_states(superlink: SuperLink, api: control.Control) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = public_key_bytes(key.public_key())

    def node() -> control.Node:
        [known] = [each for each in api.nodes() if each.client_id == client_id_of(pem)]
        assert known.name == "one"
        assert known.since
        return known

    def seconds_ago(moment: str) -> float:
        return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()

    api.register_node(pem, "one")
    assert (node().status, node().last_seen) == ("registered", "")
    fleet = GrpcFleet(superlink.fleet_address, key, insecure=False, root_certificates=ca_of(superlink))
    node_id = fleet.activate(10.0)
    assert (node().status, node().node_id) == ("online", node_id)
    assert -1 < seconds_ago(node().last_seen) < 10, "its activation, not the end of its time online"
    fleet.deactivate(node_id, 5.0)
    fleet.close()
    assert node().status == "offline"
    assert node().last_seen == node().since
    api.unregister_node(node_id)
    assert node().status == control.UNREGISTERED


@pytest.mark.e2e
def test_a_key_that_is_known_or_was_unregistered_is_in_use(api: control.Control) -> None:
    pem = public_key_bytes(ec.generate_private_key(ec.SECP256R1()).public_key())
    api.register_node(pem, "two")
    with pytest.raises(control.KeyInUse, match="refused: Public key already in use"):
        api.register_node(pem, "two")
    [node_id] = [each.node_id for each in api.nodes() if each.client_id == client_id_of(pem)]
    api.unregister_node(node_id)
    with pytest.raises(control.KeyInUse):
        api.register_node(pem, "two")


@pytest.mark.e2e
def test_refusals_are_one_line(superlink: SuperLink) -> None:
    api = control.Control(superlink.control_address, ca_of(superlink))
    with pytest.raises(control.ControlError, match="refused: Invalid run configuration") as refused:
        api.start_run(fab(), {"unknown": 1})
    assert not refused.value.unreachable
    assert "\n" not in str(refused.value)
    with pytest.raises(control.ControlError, match="refused: Run ID not found"):
        api.run_status(12)
    told = f"the SuperLink at {superlink.control_address} speaks TLS: give root-certificates"
    with pytest.raises(control.ControlError) as plain:
        control.Control(superlink.control_address).nodes()
    assert str(plain.value) == told
    assert not plain.value.unreachable, "asking again does not help"


@pytest.mark.parametrize("how", ["reset", "closed"])
def test_a_superlink_that_answers_by_tls_is_known_however_it_ends_the_connection(how: str, tmp_path: Path) -> None:
    """A server may close a connection that begins in plaintext, or reset it: which it is, is a matter of timing."""
    tls = certificates.make(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the listener is closed, or the client went
            while True:
                raw, _ = listener.accept()
                with raw:
                    if raw.recv(1, socket.MSG_PEEK) == b"\x16":  # a TLS handshake
                        with contextlib.suppress(OSError):
                            context.wrap_socket(raw, server_side=True).close()
                    elif how == "reset":
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(control.ControlError) as told:
            control.Control(address).nodes()
    assert str(told.value) == f"the SuperLink at {address} speaks TLS: give root-certificates"


def test_a_server_that_does_not_speak_tls_is_known_too(tmp_path: Path) -> None:
    ca = certificates.make(tmp_path / "tls").ca.read_bytes()
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(control.ControlError) as told:
            control.Control(address, ca).nodes()
    finally:
        server.shutdown()
        server.server_close()
    assert str(told.value) == f"what listens at {address} does not speak TLS: leave root-certificates out"


def test_a_superlink_that_is_not_there_is_not_reachable() -> None:
    with pytest.raises(control.ControlError, match=r"127\.0\.0\.1:1 is not reachable") as error:
        control.Control("127.0.0.1:1").nodes()
    assert error.value.unreachable
    assert isinstance(error.value.__context__, httpx.ConnectError)


def test_an_error_is_unreachable_only_where_it_says_so() -> None:
    assert not control.ControlError("refused").unreachable
    assert not control.KeyInUse("taken").unreachable
    assert control.ControlError("no answer", unreachable=True).unreachable


@pytest.mark.parametrize(
    ("status", "sub_status", "word", "ends"),
    [
        ("running", "", "running", []),
        ("running", "stopped", "running", []),
        ("finished", "", "finished", ["finished"]),
        ("finished", "failed", "failed", ["finished"]),
        ("finished", "completed", "completed", ["finished", "completed"]),
        ("finished", "stopped", "stopped", ["finished"]),
    ],
)
def test_how_a_run_has_ended(status: str, sub_status: str, word: str, ends: list[str]) -> None:
    run = control._listed_run(Run(status=RunStatus(status=status, sub_status=sub_status)))
    assert run.status == word
    assert [name for name in ("finished", "completed") if getattr(run, name)] == ends


def test_when_a_node_was_last_seen() -> None:
    """Online until 12:01:00 with a heartbeat each 15 s, of which Flower lets two be missed: seen at 12:00:30."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    online = NodeInfo(status="online", online_until=noon + 60, heartbeat_interval=15)
    assert control._last_seen(online) == "2026-01-01T12:00:30+00:00"
    assert control._last_seen(NodeInfo(status="offline", last_deactivated_at="then", online_until=noon)) == "then"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE, control.KeyInUse),
        (ApiErrorCode.PUBLIC_KEY_NOT_VALID, control.ControlError),
    ],
)
def test_a_key_in_use_is_told_from_other_refusals(code: ApiErrorCode, kind: type[control.ControlError]) -> None:
    said = json.dumps(FlowerError(code, "only its log says this").to_json("no"))
    answer = httpx.Response(400, text=said, request=httpx.Request("POST", "http://a"))

    def refuse(*_: object) -> None:
        raise httpx.HTTPStatusError("no", request=answer.request, response=answer)

    with pytest.raises(control.ControlError, match="refused: no") as error:
        control.Control("127.0.0.1:9")._call(refuse, None)
    assert type(error.value) is kind
