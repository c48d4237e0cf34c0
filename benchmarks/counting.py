"""A SuperLink that counts its requests, by kind, into a file of its folder."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]

from fedappeal.federation.superlink import SuperLink

COUNTS = "counts.json"
EVERY = 0.05


class Counting(SuperLink):
    """A SuperLink that counts its requests."""

    def _command(self, fleet: int, control: int) -> list[str]:
        command = super()._command(fleet, control)
        module = command.index("-m")
        return [*command[:module], str(Path(__file__).resolve()), *command[module + 2 :]]

    def counts(self) -> Counter[str]:
        """Return the requests so far, by kind."""
        for _ in range(100):
            try:
                return Counter(json.loads((self.folder / COUNTS).read_text()))
            except (OSError, ValueError):  # just being written
                time.sleep(EVERY)
        raise RuntimeError(f"no counts; see {self.log_file}")


def by_kind(counts: Counter[str], shares: float) -> dict[str, float]:
    """Return requests by kind, each divided into some shares; a poll counts as what it brought."""
    found = Counter(counts)
    found["Fleet PullMessages"] = found.pop("messages", 0)
    found["Fleet PullMessages, empty"] = found.pop("polls", 0) - found["Fleet PullMessages"]
    each = {kind: number / shares for kind, number in sorted(found.items())}
    sides = ("Fleet", "Runtime")
    return {**{side: sum(n for kind, n in each.items() if kind.startswith(side)) for side in sides}, **each}


def be_superlink(arguments: Sequence[str]) -> None:
    """Be a SuperLink that writes its counts into the current folder."""
    from importlib import import_module

    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    from fedappeal.federation.own_superlink import run_own_superlink
    from fedappeal.flower.processes import replace_name

    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def count(kind: str) -> None:
        with lock:
            counts[kind] += 1

    class CountFleet(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
        def intercept_service(
            self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
        ) -> grpc.RpcMethodHandler | None:
            handler, method = continuation(details), details.method.rpartition("/")[2]
            if handler is None or handler.unary_unary is None:
                return handler

            def counted(request: Any, context: Any) -> Any:
                answer = handler.unary_unary(request, context)
                early = method == "PullObject" and not answer.object_available
                count("Fleet PullObject, not there yet" if early else f"Fleet {method}")
                if method == "PullMessages" and answer.messages_list:
                    count("messages")
                return answer

            wrap = grpc.unary_unary_rpc_method_handler
            return wrap(counted, handler.request_deserializer, handler.response_serializer)

    class CountPolls(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
        """Counts polls as they come in: a held one is put to Flower twice."""

        def intercept_service(
            self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
        ) -> grpc.RpcMethodHandler | None:
            if details.method.endswith("/PullMessages"):
                count("polls")
            return continuation(details)

    class CountHttp:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(
            self, scope: MutableMapping[str, Any], receive: Callable[..., Awaitable[Any]], send: Any
        ) -> None:
            if scope["type"] == "http" and "/runtime/" in scope["path"]:
                count(f"Runtime {scope['path'].rpartition('/')[2]}")
            await self._app(scope, receive, send)

    def write() -> None:
        while True:
            with lock:
                text = json.dumps(counts)
            Path(COUNTS).write_text(text)
            time.sleep(EVERY)

    flower = import_module("flwr.superlink.cli.flower_superlink")
    run, create = flower._run_fleet_api_grpc_rere, flower.generic_create_grpc_server
    middleware = extensions.get_middleware

    def fleet(*, interceptors: Sequence[Any] | None = None, **named: Any) -> Any:
        return run(interceptors=[*(interceptors or []), CountFleet()], **named)

    def outermost(*given: Any, interceptors: Sequence[Any] | None = None, **named: Any) -> Any:
        return create(*given, interceptors=[CountPolls(), *(interceptors or [])], **named)

    replace_name(flower, "_run_fleet_api_grpc_rere", fleet)
    replace_name(flower, "generic_create_grpc_server", outermost)
    replace_name(extensions, "get_middleware", lambda: (*middleware(), Middleware(CountHttp)))
    threading.Thread(target=write, daemon=True).start()
    run_own_superlink(arguments)


if __name__ == "__main__":
    be_superlink(sys.argv[1:])
