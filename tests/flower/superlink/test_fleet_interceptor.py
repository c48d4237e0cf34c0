"""Which calls of a gRPC server are held; how they end is in test_held_polls."""

from types import SimpleNamespace

import grpc
import pytest
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.supercore.primitives.asymmetric import sign_message

from fedappeal.flower.node.fleet import HOLD_HEADER, NotConnected
from fedappeal.flower.superlink.fleet_interceptor import FleetInterceptor
from fedappeal.flower.superlink.held_polls import HeldPolls
from fedappeal.flower.superlink.request_sizes import LARGEST_REQUEST, SMALL_REQUEST
from tests.flower.conftest import Server
from tests.flower.superlink.test_fleet_limits import bounded  # noqa: F401  # a fixture


def test_only_calls_of_one_request_and_one_reply_are_held() -> None:
    details = SimpleNamespace(method="/flwr.proto.Fleet/PullMessages", invocation_metadata=((HOLD_HEADER, "20"),))
    polls = FleetInterceptor(HeldPolls())
    assert polls.intercept_service(lambda _: None, details) is None
    stream = grpc.stream_stream_rpc_method_handler(lambda requests, context: requests)
    assert polls.intercept_service(lambda _: stream, details) is stream
    with pytest.raises(TypeError, match="PullMessages streams: nothing here can refuse it"):
        FleetInterceptor(HeldPolls(), "127.0.0.1:9092").intercept_service(lambda _: stream, details)
    unary = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    held = polls.intercept_service(lambda _: unary, details)
    assert held is not None
    assert held.unary_stream


def test_a_request_that_is_too_large_is_not_parsed() -> None:
    parsed: list[int] = []
    unary = grpc.unary_unary_rpc_method_handler(print, lambda content: parsed.append(len(content)) or "request")
    for call, most in (("GetRun", SMALL_REQUEST), ("PushMessages", 2 << 20), ("PushObject", LARGEST_REQUEST)):
        details = SimpleNamespace(method=f"/flwr.proto.Fleet/{call}", invocation_metadata=())
        handler = FleetInterceptor(HeldPolls()).intercept_service(lambda _: unary, details)
        assert handler is not None
        assert handler.request_deserializer(bytes(most)) == "request"
        assert handler.request_deserializer(bytes(most + 1)) is None, "gRPC refuses the call then"
    refusal = grpc.unary_unary_rpc_method_handler(print)  # Flower refuses a call by a handler that parses nothing
    handler = FleetInterceptor(HeldPolls()).intercept_service(lambda _: refusal, details)
    assert handler is not None
    assert handler.request_deserializer(b"raw") == b"raw"
    assert parsed == [SMALL_REQUEST, 2 << 20, LARGEST_REQUEST]


@pytest.mark.parametrize("time", ["noon", "2026-11-29T08:00:00", ""])
@pytest.mark.parametrize("key", [b"none", b""])
def test_a_signature_that_cannot_be_read_is_refused_without_pages_in_the_log(
    bounded: Server,  # noqa: F811
    key: bytes,
    time: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = bounded.fleet()
    signed = {
        **dict(fleet._signer.headers()),
        TIMESTAMP_HEADER: time,
        SIGNATURE_HEADER: sign_message(fleet._signer._key, time.encode()),
    }
    if key:
        signed[PUBLIC_KEY_HEADER] = key
    monkeypatch.setattr(fleet, "_sign", lambda *_: list(signed.items()))
    with pytest.raises(NotConnected):
        fleet.register()
    assert not [record for record in caplog.records if record.exc_info]
