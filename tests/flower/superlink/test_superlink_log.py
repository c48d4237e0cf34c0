"""What fedappeal.flower.superlink.superlink_log relies on: the texts that a SuperLink logs, and where it refuses."""

import inspect
import logging
import sys
import time
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.server.superlink.fleet.grpc_rere import node_auth_server_interceptor as authentication
from flwr.supercore.logger import FLOWER_LOGGER, ConsoleHandler
from flwr.superlink.cli.flower_superlink import flower_superlink

from fedappeal.flower.node import fleet as api
from fedappeal.flower.node import signing
from fedappeal.flower.node.fleet_grpc import GrpcFleet
from fedappeal.flower.superlink.superlink_log import (
    MEANINGS,
    MOST_LINES,
    ReadableCalls,
    log_refusals,
    readable_log,
    warn_of_ends,
)
from fedappeal.system.validity import Validity
from tests.flower.conftest import Server


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(FLOWER_LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, "flwr")
    return caplog


def test_only_the_word_that_every_run_ends_with_is_left_out(
    any_server: Server, logged: pytest.LogCaptureFixture
) -> None:
    fleet, node = any_server.node()
    run_id = any_server.start_run()
    assert any_server.state.stop_run(run_id)
    for call in (lambda: fleet.confirm(node, run_id, "x"), lambda: fleet.pull_objects(node, run_id, ["x"])):
        with pytest.raises(api.MessageDropped):
            call()
    [confirmed, pulled] = [r for r in logged.records if "Run is finished" in r.getMessage()]
    assert not ReadableCalls().filter(confirmed)
    assert ReadableCalls().filter(pulled)
    other = logging.LogRecord("flwr", logging.ERROR, "", 0, "ConfirmMessageReceived: something else", None, None)
    assert ReadableCalls().filter(other)


def test_whoever_calls_without_end_writes_few_lines(
    any_server: Server, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    few = ReadableCalls(lambda: now[0])
    fleet, _ = any_server.node()
    for _ in range(2):  # with refused calls Flower logs an error each
        with pytest.raises(api.AlreadyRegistered):
            fleet.register()
    refused = [record for record in logged.records if "ApiError" in record.getMessage()]
    assert len(refused) == 2
    call = refused[0].getMessage().partition("]")[0]
    different = [logging.LogRecord("flwr", logging.ERROR, "", 0, f"{call}] {n}", None, None) for n in range(300)]
    shown = [record for record in different if few.filter(record)]
    assert len(shown) == MOST_LINES < 300
    assert "more lines about this call are left out" in shown[-1].getMessage()
    other = [record for record in logged.records if "[Fleet.ActivateNode]" in record.getMessage()]
    assert few.filter(other[0]), "another call has lines of its own"
    ours = logging.LogRecord("flwr", logging.INFO, "", 0, "a run has begun", None, None)
    assert all(few.filter(ours) for _ in range(MOST_LINES + 1))
    now[0] += 60.0
    assert few.filter(refused[0])


def test_other_errors_about_a_call_are_said_again_as_seldom(
    any_server: Server, logged: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    new = ReadableCalls(lambda: now[0])
    fleet, _ = any_server.node()
    for _ in range(3):
        with pytest.raises(api.AlreadyRegistered):
            fleet.register()
    records = [record for record in logged.records if "ApiError" in record.getMessage()]
    assert [record.levelname for record in records if new.filter(record)] == ["ERROR"]
    ours = logging.LogRecord("flwr", logging.ERROR, "", 0, "the disk is full", None, None)
    assert all(new.filter(ours) for _ in range(3))
    made_up = (f"[Fleet.RegisterNode][ApiError:1] {number}" for number in range(2000))
    for text in made_up:
        now[0] += 1.0
        assert new.filter(logging.LogRecord("flwr", logging.ERROR, "", 0, text, None, None))
    assert len(new._lately._said) == 1000, "strangers fill no memory"


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_unary_unary_rpc_terminator"
    monkeypatch.setattr(authentication, name, getattr(authentication, name))  # put back after the test
    log_refusals()


def test_a_client_that_flower_refuses_is_logged_with_what_it_means(
    patched: None, server: Server, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, node = server.node()
    forged = GrpcFleet(server.address, ec.generate_private_key(ec.SECP256R1()), insecure=True, root_certificates=None)
    forged._signer.public_key = fleet._signer.public_key  # type: ignore[attr-defined]
    with pytest.raises(api.NotAdmitted, match="Invalid signature"):
        forged.pull(node)
    monkeypatch.setattr(forged, "_sign", list)
    with pytest.raises(api.NotAdmitted, match="Missing authentication metadata"):
        forged.pull(node)
    forged.close()
    monkeypatch.setattr(signing, "now", lambda: datetime.now(UTC) + timedelta(seconds=60))
    with pytest.raises(api.WrongClock):
        server.fleet().register()
    said = [record.getMessage() for record in logged.records if record.levelno == logging.WARNING]
    assert sorted(said) == sorted(MEANINGS.values())


def test_a_refusal_is_logged_once_a_minute(logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    refused: list[str] = []
    monkeypatch.setattr(authentication, "_unary_unary_rpc_terminator", refused.append)
    log_refusals(lambda: now[0])
    refuse = authentication._unary_unary_rpc_terminator
    refuse("Invalid timestamp")
    now[0] = 159.9
    refuse("Invalid timestamp")
    refuse("of another kind")
    assert [record.getMessage() for record in logged.records] == [
        "a client is refused: its clock is more than 5 s ahead of this machine's, or 305 s behind",
        "a client is refused: of another kind",
    ]
    now[0] = 160.0
    refuse("Invalid timestamp")
    assert len(logged.records) == 3
    assert len(refused) == 4


def test_a_refusal_is_flowers_own(patched: None) -> None:
    handler = authentication._unary_unary_rpc_terminator("Invalid timestamp")
    assert isinstance(handler, grpc.RpcMethodHandler)


def test_flowers_logger_prints_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FLOWER_LOGGER, "handlers", list(FLOWER_LOGGER.handlers))
    monkeypatch.setattr(FLOWER_LOGGER, "filters", list(FLOWER_LOGGER.filters))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    assert any(isinstance(handler, ConsoleHandler) for handler in FLOWER_LOGGER.handlers), "what is replaced"
    assert FLOWER_LOGGER.name == "flwr", "the name by which a client's process makes it quiet"
    access = logging.getLogger("uvicorn.access")
    monkeypatch.setattr(access, "filters", [])
    monkeypatch.setenv("FLWR_LOG_LEVEL", "debug")
    readable_log()
    assert not access.filters, "a line for each request is for debugging"
    monkeypatch.delenv("FLWR_LOG_LEVEL")
    readable_log()
    assert not access.filter(logging.LogRecord("", logging.INFO, "", 0, "POST", None, None))
    FLOWER_LOGGER.handlers = FLOWER_LOGGER.handlers[:1]
    FLOWER_LOGGER.warning("a line")
    [line] = [line for line in capsys.readouterr().out.splitlines() if "a line" in line]
    assert line[8:] == " WARNING a line"
    assert line[2] == line[5] == ":"


def test_the_superlink_is_a_function_that_reads_the_command_line() -> None:
    assert not inspect.signature(flower_superlink).parameters


def test_a_certificate_that_ends_soon_is_warned_of_again_and_again(logged: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    soon, late = (Validity(now, now + timedelta(days=days)) for days in (20, 40))
    ended = warn_of_ends([("the one", soon), ("the other", late)], every=0.01)
    deadline = time.monotonic() + 10
    while len(logged.messages) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    ended.set()
    assert len(logged.messages) >= 3
    assert {text.partition(" ends")[0] for text in logged.messages} == {"the one"}


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("ControlServicer.ListRuns", False),
        ("ControlServicer.ListNodes", False),
        ("[Fleet.PushMessages] Push replies from node_id=1", False),
        ("[/flwr.proto.Fleet/PullMessages] x", False),
        ("[/v1/fleet/pull-object] x", False),
        ("ControlServicer.StartRun", True),
        ("[Fleet.RegisterNode] Registered node_id=1", True),
        ("[/v1/fleet/deactivate-node] x", True),
        ("[Fleet.UnregisterNode] Unregistered node_id=1", True),
    ],
)
def test_events_are_logged_and_calls_that_are_made_again_and_again_are_for_debugging(text: str, event: bool) -> None:
    record = logging.LogRecord("flwr", logging.INFO, "", 0, text, None, None)
    assert ReadableCalls().filter(record)
    assert (record.levelno, record.levelname) == ((logging.INFO, "INFO") if event else (logging.DEBUG, "DEBUG"))
    failed = logging.LogRecord("flwr", logging.ERROR, "", 0, text, None, None)
    assert ReadableCalls().filter(failed)
    assert failed.levelno == logging.ERROR, "what went wrong is said in any case"
