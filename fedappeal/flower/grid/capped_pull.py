"""One object of a reply over the Runtime API, never more of it in memory than is allowed.

Flower's client reads a whole answer before it looks at it. Its sending half is used here (address, token, retries),
and the answer is read as a stream.
"""

import httpx
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient

_PATH = "/v1/runtime/pull-object"
_METHOD = "/flwr.proto.Runtime/PullObject"
_FRAMING = 64
"""Bytes of an answer besides the content."""
_READ_TIMEOUT = 30.0


class TooLarge(Exception):
    """An object is larger than allowed; the message says how large where that is known."""


def pull_object(client: RuntimeHttpClient, request: PullObjectRequest, most: int) -> PullObjectResponse:
    """Return the SuperLink's answer to a request for an object.

    Args:
        client: of Flower's grid.
        request: names the object.
        most: bytes that its content may have.

    Raises:
        TooLarge: before more than that is read.
        httpx.HTTPStatusError: if the SuperLink refuses.
    """
    content = request.SerializeToString()

    def send() -> bytes:
        http_request = client._client.build_request(
            "POST",
            f"{client._base_url}{_PATH}",
            content=content,
            headers={
                "content-type": PROTOBUF_MEDIA_TYPE,
                "accept": PROTOBUF_MEDIA_TYPE,
                "accept-encoding": "identity",  # a compressed answer says nothing about its size
            },
        )
        response = client._send(ProtobufRequestContext(_METHOD, request, http_request), stream=True)
        try:
            response.raise_for_status()
            http_request.extensions["timeout"]["read"] = _READ_TIMEOUT  # Flower's streams wait for ever
            return _read(response, most + _FRAMING)
        finally:
            response.close()

    body = client._retry_invoker.invoke(send) if client._retry_invoker is not None else send()
    answer: PullObjectResponse = PullObjectResponse.FromString(body)
    return answer


def _read(response: httpx.Response, most: int) -> bytes:
    announced = int(response.headers.get("content-length", 0))
    if announced > most:
        raise TooLarge(f"{announced} bytes")
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > most:
            raise TooLarge(f"more than {most} bytes")
    return bytes(body)
