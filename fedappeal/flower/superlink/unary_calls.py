"""What stands before some calls of a gRPC server that have one request and one answer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]

Before = Callable[[Callable[..., Any], Any, grpc.ServicerContext], Any]
"""Is given the call that it stands before, the request and the context, and returns the answer."""


class UnaryCalls(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """An interceptor whose subclass says what stands before which call."""

    def before(self, method: str, metadata: Any) -> Before | None:
        """Return what stands before a method, given without its service, with this metadata; None: nothing does."""
        raise NotImplementedError

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Put it before the call."""
        handler = continuation(handler_call_details)
        before = self.before(handler_call_details.method.rpartition("/")[2], handler_call_details.invocation_metadata)
        if handler is None or handler.unary_unary is None or before is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            partial(before, handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )
