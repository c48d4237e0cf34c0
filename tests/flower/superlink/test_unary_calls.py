"""What stands before a gRPC server's calls: the one that it names gets it, all others are the server's own."""

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import pytest

from fedappeal.flower.superlink.unary_calls import Before, UnaryCalls


class LoudForMembers(UnaryCalls):
    """Puts an answer into capitals, where the caller is a member and says or chants."""

    def before(self, method: str, metadata: Any) -> Before | None:
        return self._loud if method in ("Say", "Chant") and ("member", "yes") in metadata else None

    def _loud(self, call: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> bytes:
        answer: bytes = call(request, context)
        return answer.upper()


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    """A server that echoes: Say and Whisper with one answer, Chant with a stream of two."""
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    chant = grpc.unary_stream_rpc_method_handler(lambda request, context: iter([request, request]))
    server = grpc.server(futures.ThreadPoolExecutor(2), interceptors=[LoudForMembers()])
    handlers = {"Say": echo, "Whisper": echo, "Chant": chant}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None).wait()


MEMBER = (("member", "yes"),)


@pytest.mark.parametrize(
    ("method", "metadata", "answer"),
    [("Say", MEMBER, b"A WORD"), ("Say", (), b"a word"), ("Whisper", MEMBER, b"a word")],
)
def test_it_stands_before_the_calls_that_it_names(
    channel: grpc.Channel, method: str, metadata: tuple[tuple[str, str], ...], answer: bytes
) -> None:
    assert channel.unary_unary(f"/a.Service/{method}")(b"a word", metadata=metadata, timeout=30) == answer


def test_a_call_with_a_stream_of_answers_is_left_alone(channel: grpc.Channel) -> None:
    answers = channel.unary_stream("/a.Service/Chant")(b"a word", metadata=MEMBER, timeout=30)
    assert list(answers) == [b"a word", b"a word"]


def test_a_method_that_the_server_has_not_is_unimplemented(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/a.Service/Sing")(b"a word", metadata=MEMBER, timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
