"""Which calls of a gRPC server are held; how they end is in test_held_polls."""

from types import SimpleNamespace

import grpc

from fedappeal.flower.node.fleet import HOLD_HEADER
from fedappeal.flower.superlink.held_grpc import GrpcPolls
from fedappeal.flower.superlink.held_polls import HeldPolls


def test_only_calls_of_one_request_and_one_reply_are_held() -> None:
    details = SimpleNamespace(method="/flwr.proto.Fleet/PullMessages", invocation_metadata=((HOLD_HEADER, "20"),))
    polls = GrpcPolls(HeldPolls())
    assert polls.intercept_service(lambda _: None, details) is None
    stream = grpc.stream_stream_rpc_method_handler(lambda requests, context: requests)
    assert polls.intercept_service(lambda _: stream, details) is stream
    unary = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    assert polls.intercept_service(lambda _: unary, details) is not unary
