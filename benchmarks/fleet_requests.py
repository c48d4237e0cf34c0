"""Requests a client and round at the SuperLink, by kind, beside the least that a message's objects make necessary.

Real client processes, a run with TRAIN and EVALUATE every round, and a SuperLink that counts its own requests:
``python benchmarks/fleet_requests.py --json FILE`` (``--database`` for a SuperLink with a database file). What is
counted is the difference between two moments of the same run, so that roll call and start-up are left out.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import psutil

from fedappeal.federation.clients import ClientProcesses
from fedappeal.federation.submit import build_fab, run_status, submit
from fedappeal.federation.superlink import SuperLink
from fedappeal.record.run_folder import HISTORY, RunFolder, read_lines
from fedappeal.settings.config import RunConfig

COUNTS = "counts.json"
WARM_UP = 3
EVERY = 0.05

FLOOR = {
    "TRAIN, down": {"PullMessages": 1, "PullObject": 3, "ConfirmMessageReceived": 1},
    "TRAIN, up": {"PushMessages": 1, "PushObject": 6},
    "EVALUATE, down": {"PullMessages": 1, "PullObject": 6, "ConfirmMessageReceived": 1},
    "EVALUATE, up": {"PushMessages": 1, "PushObject": 3},
}
"""Requests of one client and round; docs/benchmarks.md derives them."""


class Counting(SuperLink):
    """A SuperLink that counts its requests into a file of its folder."""

    def _command(self, fleet: int, control: int) -> list[str]:
        command = super()._command(fleet, control)
        module = command.index("-m")
        return [*command[:module], str(Path(__file__).resolve()), "--be-superlink", *command[module + 2 :]]

    def counts(self) -> Counter[str]:
        """Return the requests so far, by kind."""
        for _ in range(100):
            try:
                return Counter(json.loads((self.folder / COUNTS).read_text()))
            except (OSError, ValueError):  # just being written
                time.sleep(EVERY)
        raise RuntimeError(f"no counts; see {self.log_file}")


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
                if method == "PullObject" and not answer.object_available:
                    count("Fleet PullObject, not there yet")
                else:
                    count(f"Fleet {method}")
                if method == "PullMessages" and answer.messages_list:
                    count("messages")
                return answer

            return grpc.unary_unary_rpc_method_handler(
                counted, handler.request_deserializer, handler.response_serializer
            )

    class CountCalls(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
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
    run, create, middleware = (
        flower._run_fleet_api_grpc_rere,
        flower.generic_create_grpc_server,
        extensions.get_middleware,
    )

    def start(*, interceptors: Sequence[Any] | None = None, **named: Any) -> Any:
        return run(interceptors=[*(interceptors or []), CountFleet()], **named)

    def outermost(*given: Any, interceptors: Sequence[Any] | None = None, **named: Any) -> Any:
        return create(*given, interceptors=[CountCalls(), *(interceptors or [])], **named)

    replace_name(flower, "_run_fleet_api_grpc_rere", start)
    replace_name(flower, "generic_create_grpc_server", outermost)
    replace_name(extensions, "get_middleware", lambda: (*middleware(), Middleware(CountHttp)))
    threading.Thread(target=write, daemon=True).start()
    run_own_superlink(arguments)


def settings(arguments: argparse.Namespace, out: Path) -> RunConfig:
    """Return the run's settings."""
    return RunConfig.parse(
        {
            "task": arguments.task,
            "clients": arguments.clients,
            "partition": "iid",
            "rounds": arguments.rounds,
            "local-steps": 5,
            "batch-size": 8,
            "evaluate-every": 1,
            "mandatory-rounds": arguments.rounds,
            "strategy": arguments.strategy,
            "out": str(out),
            "resume": True,
            "min-clients": arguments.clients,
            "start-timeout": 240,
            "round-timeout": 240,
        }
    )


def cpu(pid: int) -> float:
    """Return the CPU seconds of one process so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def one_run(superlink: Counting, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run once; return requests a client and round, seconds a round and the SuperLink's CPU seconds a round."""
    config = settings(arguments, folder)
    RunFolder.create(folder, config)
    run_id = submit(superlink.control_address, build_fab(config.as_config()))
    deadline = time.monotonic() + 900
    before: tuple[int, Counter[str], float] | None = None
    while True:
        lines = read_lines(folder / HISTORY)
        if len(lines) >= WARM_UP and before is None:
            before = len(lines), superlink.counts(), cpu(superlink.pid)
        # The last round but one: the end of a run is left out too.
        if len(lines) >= arguments.rounds - 1:
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"the run did not finish; see {superlink.log_file}")
        time.sleep(0.01)
    assert before is not None
    rounds = len(lines) - before[0]
    counts = superlink.counts() - before[1]
    used = cpu(superlink.pid) - before[2]
    while not run_status(superlink.control_address, run_id).finished:
        time.sleep(0.1)
    lines = read_lines(folder / HISTORY)
    if {int(line["joined"]) for line in lines} != {arguments.clients}:
        raise RuntimeError(f"not every client joined every round; see {folder}")
    counts["Fleet PullMessages"] = counts.pop("messages")
    counts["Fleet PullMessages, empty"] = counts.pop("polls") - counts["Fleet PullMessages"]
    each = {kind: number / rounds / arguments.clients for kind, number in sorted(counts.items())}
    return {
        "requests": each,
        "fleet": sum(number for kind, number in each.items() if kind.startswith("Fleet")),
        "runtime": sum(number for kind, number in each.items() if kind.startswith("Runtime")),
        "rounds": rounds,
        "seconds": statistics.median(float(line["seconds"]) for line in lines[WARM_UP:]),
        "superlink_cpu": used / rounds,
    }


def main() -> None:
    """Measure and print the table; write JSON where asked."""
    from machine import described  # the SuperLink's process has not this folder on its path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--strategy", default="maxfl")
    parser.add_argument("--database", action="store_true", help="the SuperLink keeps its state in a file")
    arguments = parser.parse_args()

    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedappeal-requests-")))
        database = root / "state.db" if arguments.database else None
        superlink = stack.enter_context(Counting(root / "superlink", database=database))
        config = settings(arguments, root)
        clients = ClientProcesses(
            config, initial=root / "initial", states=root / "states", logs=root / "logs", device="cpu"
        )
        stack.callback(clients.end)
        clients.start()
        clients.connect(superlink.fleet_address)
        for repetition in range(arguments.repetitions):
            run = one_run(superlink, root / f"run-{repetition}", arguments)
            runs.append(run)
            print(
                f"{repetition + 1}: {run['fleet']:.1f} Fleet and {run['runtime']:.1f} Runtime requests a client and "
                f"round, {run['seconds']:.2f} s and {run['superlink_cpu']:.2f} SuperLink CPU-s a round",
                flush=True,
            )
    kinds = sorted({kind for run in runs for kind in run["requests"]})
    medians = {kind: statistics.median(run["requests"].get(kind, 0.0) for run in runs) for kind in kinds}
    floor: Counter[str] = Counter()
    for part in FLOOR.values():
        floor.update(part)
    print(f"\n{'a client and round':<36}{'counted':>9}{'floor':>7}")
    for kind in kinds:
        least = floor.get(kind.removeprefix("Fleet "), 0) if kind.startswith("Fleet") else ""
        print(f"{kind:<36}{medians[kind]:>9.2f}{least:>7}")
    total, least = statistics.median(run["fleet"] for run in runs), sum(floor.values())
    print(f"{'Fleet requests':<36}{total:>9.2f}{least:>7}{total / least:>7.2f}")
    if arguments.json:
        report = {
            **described(),
            **{key: getattr(arguments, key) for key in ("clients", "rounds", "task", "strategy", "database")},
            "floor": FLOOR,
            "medians": medians,
            "runs": runs,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be-superlink"]:
        be_superlink(sys.argv[2:])
    else:
        main()
