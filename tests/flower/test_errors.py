"""What fedappeal.flower.messages relies on: errors as Flower sends them, and what its reader does not bear."""

import json

import pytest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.error.grpc import _flower_error_to_grpc_json

from fedappeal.flower.messages import known_error

CODE = ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE
SENT = FlowerError(CODE, "only the SuperLink's log says this", "details")


@pytest.mark.parametrize(
    "text",
    [_flower_error_to_grpc_json(SENT, "told"), json.dumps(SENT.to_json("told"))],
    ids=["gRPC", "HTTP"],
)
def test_flowers_error_is_known(text: str) -> None:
    error = known_error(text)
    assert error is not None
    assert (error.code, error.message, error.public_details) == (CODE, "told", "details")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Internal server error.",
        "[]",
        '{"code": true, "detail": "x"}',
        '{"code": 1}',
        "[" * 19_000,
        '{"code": ' + "1" * 5_000 + ', "detail": "x"}',
        json.dumps(SENT.to_json("x" * 20_000)),
    ],
    ids=["empty", "plain", "list", "a code that is no number", "no text", "nested", "a long number", "long"],
)
def test_a_text_that_is_none_or_does_harm_is_not(text: str) -> None:
    assert known_error(text) is None


def test_flowers_reader_ends_in_an_error_where_a_text_does_harm() -> None:
    """Fails where Flower bounds what it reads, and the bounds of known_error are no longer needed."""
    with pytest.raises(RecursionError):
        FlowerError.from_json("[" * 19_000)
    with pytest.raises(ValueError, match="digits"):
        FlowerError.from_json('{"code": ' + "1" * 5_000 + ', "detail": "x"}')
