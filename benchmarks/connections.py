"""A thousand light clients on one SuperLink: none lost, none counted twice, and what that takes.

The clients speak the Fleet API as real ones do (a key, a node, a connection and a held poll each, objects one by one)
in one process without PyTorch; client k answers TRAIN with the model plus a constant of its own and claims a weight
of its own. So who trained when, the server's history and the final model have to agree:
``python benchmarks/connections.py --json FILE``
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import psutil
from fleet_requests import Counting, cpu

from fedappeal.federation.submit import build_fab, run_status, submit
from fedappeal.record.lines import PARTICIPATION
from fedappeal.record.run_folder import HISTORY, RunFolder, read_lines
from fedappeal.settings.config import RunConfig

HEARTBEAT = 60.0
CONNECTING = 50
"""Clients that connect at the same time."""
CONFIRM_AFTER = 2.0
AGAIN = (0.5, 1.0, 2.0, 4.0)
"""Seconds until a call that was not answered is made again."""
NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
WITHIN = 1e-3
"""How far the final model may be from the replayed one."""


def change(number: int) -> float:
    """Return what client ``number`` adds to each value of the model."""
    return 1e-4 * (1 + number)


def examples(number: int) -> int:
    """Return the number of examples that client ``number`` claims."""
    return 1 + number % 7


class LightClient:
    """One node: a key and a connection of its own, and all answers by formula.

    Args:
        address: of the Fleet API.
        number: which client it is.
        seen: where all clients of the process note what they did.
    """

    def __init__(self, address: str, number: int, seen: dict[str, Any]) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from flwr.proto.fleet_pb2_grpc import FleetStub

        from fedappeal.flower.node.signing import Signer

        self.number, self.seen, self.node_id = number, seen, 0
        self._signer = Signer(ec.generate_private_key(ec.SECP256R1()))
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(address, options)
        self._stub: Any = FleetStub(self._channel)
        self._cache: dict[str, bytes] = {}
        self._unconfirmed: deque[tuple[float, int, str]] = deque()
        self._signed, self._headers = -1e9, []  # type: tuple[float, list[Any]]

    async def _call(self, method: Any, request: Any, *headers: tuple[str, str]) -> Any:
        """Make a call, again where the SuperLink did not answer; real clients do the same."""
        for wait in (*AGAIN, None):
            if time.monotonic() - self._signed > 60:
                self._signed, self._headers = time.monotonic(), list(self._signer.headers())
            try:
                return await method(request, timeout=60, metadata=[*self._headers, *headers])
            except grpc.aio.AioRpcError as error:
                if wait is None or error.code() not in NO_ANSWER:
                    raise
                self.seen["again"] += 1
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def connect(self) -> None:
        """Register the node and go online."""
        from flwr.proto import fleet_pb2

        key = self._signer.public_key
        await self._call(self._stub.RegisterNode, fleet_pb2.RegisterNodeFleetRequest(public_key=key))
        request = fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT)
        self.node_id = (await self._call(self._stub.ActivateNode, request)).node_id

    async def close(self) -> None:
        """Go offline."""
        from flwr.proto import fleet_pb2

        await self._call(self._stub.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=self.node_id))
        await self._channel.close()

    async def beat(self) -> None:
        """Stay online."""
        from flwr.proto import heartbeat_pb2
        from flwr.proto.node_pb2 import Node

        request = heartbeat_pb2.SendNodeHeartbeatRequest(
            node=Node(node_id=self.node_id), heartbeat_interval=HEARTBEAT
        )
        while True:
            await asyncio.sleep(HEARTBEAT * 0.6 * (1 + self.number % 100 / 300))
            await self._call(self._stub.SendNodeHeartbeat, request)

    async def serve(self) -> None:
        """Answer what comes, for ever."""
        from flwr.proto import fleet_pb2
        from flwr.proto.node_pb2 import Node

        from fedappeal.flower.node.fleet import HOLD_HEADER, LONGEST_HOLD

        poll = fleet_pb2.PullMessagesRequest(node=Node(node_id=self.node_id))
        while True:
            asked = time.monotonic()
            try:
                answer = await self._call(self._stub.PullMessages, poll, (HOLD_HEADER, f"{LONGEST_HOLD:g}"))
                if answer.messages_list:
                    await self._answer(answer.messages_list[0], answer.message_object_trees[0])
                elif time.monotonic() - asked < 1.0:
                    self.seen["not held"] += 1
                    await asyncio.sleep(1.0)
                await self._confirm()
            except grpc.aio.AioRpcError as error:
                self.seen["errors"].append(f"{self.number}: {error.code()} {error.details()}")
                await asyncio.sleep(1.0)

    async def _answer(self, proto: Any, tree: Any) -> None:
        from flwr.proto import fleet_pb2
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.proto.node_pb2 import Node

        from fedappeal.flower.messages import be_client, set_times
        from fedappeal.flower.node.objects import Parcel, announcement, inflate

        told = announcement(proto, tree)
        contents = {told.object_id: await self._pull(told.run_id, told.object_id)}
        missing = [part for part in told.parts if part not in self._cache]
        contents |= {part: self._cache[part] for part in told.parts if part in self._cache}
        pulled = await asyncio.gather(*(self._pull(told.run_id, part) for part in missing))
        contents |= dict(zip(missing, pulled, strict=True))
        self._cache = contents
        self._unconfirmed.append((time.monotonic() + CONFIRM_AFTER, told.run_id, told.object_id))
        message = inflate(told.object_id, contents)
        be_client(
            told.run_id, self.node_id, told.task_id
        )  # of this process: so nothing is awaited until it is packed
        reply = self._reply(message)
        set_times(reply, told.created_at + told.ttl)
        parcel, node = Parcel.of(reply), Node(node_id=self.node_id)
        request = fleet_pb2.PushMessagesRequest(
            node=node,
            messages_list=[parcel.message],
            message_object_trees=[parcel.tree],
            clientapp_runtime_list=[0.0],
        )
        answer = await self._call(self._stub.PushMessages, request)
        for object_id, content in parcel.contents(set(answer.objects_to_push)).items():
            sent = PushObjectRequest(
                node=node,
                run_id=told.run_id,
                object_id=object_id,
                object_content=content,
                session_id=answer.session_id,
            )
            if not (await self._call(self._stub.PushObject, sent)).stored:
                self.seen["errors"].append(f"{self.number}: an object was not stored")
        if told.message_type == "train":
            self.seen["trained"].append((int(message.metadata.group_id), self.number))

    def _reply(self, message: Any) -> Any:
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

        from fedappeal.protocol import keys

        model = {name: array.numpy() for name, array in message.content[keys.ARRAYS].items()}
        metrics: dict[str, float] = {keys.NUM_EXAMPLES: examples(self.number)}
        content = RecordDict()
        kind = message.metadata.message_type
        if kind == "query":
            self.seen.setdefault("w_0", {name: values.tolist() for name, values in model.items()})
            content[keys.INFO] = ConfigRecord(
                {keys.CLIENT_ID: f"light-{self.number}", keys.ROLE: keys.SEEN, keys.PRIORITY: 0, keys.LEFT_RUN: 0}
            )
        elif kind == "train":
            metrics[keys.DECISION] = int(keys.Decision.JOINED)
            added = np.float32(change(self.number))
            content[keys.ARRAYS] = ArrayRecord({name: Array(values + added) for name, values in model.items()})
        else:
            self.seen["evaluated"] += 1
            self.seen["final"] = {name: values.tolist() for name, values in model.items()}
            metrics |= {keys.LOSS: 1.0, "accuracy": 0.5}
        content[keys.METRICS] = MetricRecord(metrics)
        return Message(content, reply_to=message)

    async def _pull(self, run_id: int, object_id: str) -> bytes:
        from flwr.proto.message_pb2 import PullObjectRequest
        from flwr.proto.node_pb2 import Node

        request = PullObjectRequest(node=Node(node_id=self.node_id), run_id=run_id, object_id=object_id)
        wait = 0.01
        while True:
            answer = await self._call(self._stub.PullObject, request)
            if answer.object_available:
                return bytes(answer.object_content)
            if not answer.object_found:
                raise RuntimeError(f"{self.number}: an object is gone")
            await asyncio.sleep(wait)
            wait = min(0.25, wait * 1.5)

    async def _confirm(self) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.proto.node_pb2 import Node

        while self._unconfirmed and self._unconfirmed[0][0] <= time.monotonic():
            _, run_id, object_id = self._unconfirmed.popleft()
            request = ConfirmMessageReceivedRequest(
                node=Node(node_id=self.node_id), run_id=run_id, message_object_id=object_id
            )
            await self._call(self._stub.ConfirmMessageReceived, request)


async def be_clients(address: str, count: int, file: Path) -> None:
    """Be the light clients, until SIGTERM; then write what they saw."""
    seen: dict[str, Any] = {"trained": [], "errors": [], "evaluated": 0, "not held": 0, "again": 0}
    clients = [LightClient(address, number, seen) for number in range(count)]
    places = asyncio.Semaphore(CONNECTING)

    async def by_turns(act: Callable[[], Any]) -> None:
        async with places:
            await act()

    await asyncio.gather(*(by_turns(client.connect) for client in clients))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    tasks = [asyncio.create_task(act()) for client in clients for act in (client.serve, client.beat)]
    print("online", flush=True)
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done() and (error := task.exception()) is not None:
            seen["errors"].append(repr(error))
        task.cancel()
    file.write_text(json.dumps(seen))
    with suppress(grpc.aio.AioRpcError):
        await asyncio.gather(*(by_turns(client.close) for client in clients))


def settings(arguments: argparse.Namespace, out: Path) -> RunConfig:
    """Return the run's settings."""
    return RunConfig.parse(
        {
            "task": "digits",
            "clients": arguments.clients,
            "clients-per-round": arguments.clients_per_round,
            "rounds": arguments.rounds,
            "evaluate-every": arguments.rounds,
            "mandatory-rounds": arguments.rounds,
            "strategy": "fedavg",
            "influence": "off",
            "out": str(out),
            "resume": True,
            "min-clients": arguments.clients,
            "start-timeout": 600,
            "round-timeout": 300,
        }
    )


def memory(process: psutil.Process) -> float:
    """Return the resident memory of a process in MiB."""
    return float(process.memory_info().rss) / 2**20


def checked(folder: Path, seen: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare who trained, whom the server counted, and the final model; return the counts.

    Raises:
        RuntimeError: if a client was lost or counted twice.
    """
    counted: dict[int, list[int]] = {}
    for line in read_lines(folder / PARTICIPATION):
        if line["decision"] == "joined":
            counted.setdefault(int(line["round"]), []).append(int(str(line["client-id"]).removeprefix("light-")))
    trained: dict[int, list[int]] = {}
    for server_round, number in seen["trained"]:
        trained.setdefault(server_round, []).append(number)
    total = 0.0
    for server_round in range(1, arguments.rounds + 1):
        mine, theirs = sorted(trained.get(server_round, [])), sorted(counted.get(server_round, []))
        if mine != theirs or len(set(mine)) != arguments.clients_per_round:
            raise RuntimeError(f"round {server_round}: {mine} trained, {theirs} were counted")
        weights = sum(map(examples, mine))
        total += sum(examples(number) * change(number) for number in mine) / weights
    far = max(
        float(np.abs(np.asarray(seen["final"][name]) - np.asarray(seen["w_0"][name]) - total).max())
        for name in seen["w_0"]
    )
    if far > WITHIN:
        raise RuntimeError(f"the final model is {far:g} from the replayed one")
    return {
        "trained": len(seen["trained"]),
        "evaluated": seen["evaluated"],
        "not_held": seen["not held"],
        "called_again": seen["again"],
        "errors": seen["errors"],
        "model_moved_by": total,
        "model_off_by": far,
    }


def measure(arguments: argparse.Namespace, root: Path, stack: ExitStack) -> dict[str, Any]:
    """Run once; return the figures."""
    superlink = stack.enter_context(
        Counting(root / "superlink", database=root / "state.db" if arguments.database else None)
    )
    process = psutil.Process(superlink.pid)
    result: dict[str, Any] = {"superlink_mib_alone": memory(process)}
    since = time.monotonic()
    file = root / "seen.json"
    command = [sys.executable, __file__, "--be-clients", superlink.fleet_address, str(arguments.clients), str(file)]
    clients = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(clients.kill)
    assert clients.stdout is not None
    if clients.stdout.readline().strip() != "online":
        raise RuntimeError("the clients did not connect")
    result |= {"connected_in_s": time.monotonic() - since, "superlink_mib_connected": memory(process)}
    folder = root / "run"
    config = settings(arguments, folder)
    RunFolder.create(folder, config)
    run_id = submit(superlink.control_address, build_fab(config.as_config()))
    first: tuple[int, float, Counter[str], float] | None = None
    largest = 0.0
    while not run_status(superlink.control_address, run_id).finished:
        lines = read_lines(folder / HISTORY)
        if lines and first is None:
            first = len(lines), time.monotonic(), superlink.counts(), cpu(superlink.pid)
        if lines and len(lines) < arguments.rounds:
            last = len(lines), time.monotonic(), superlink.counts(), cpu(superlink.pid)
        largest = max(largest, memory(process))
        time.sleep(0.5)
    assert first is not None
    rounds, seconds = last[0] - first[0], last[1] - first[1]
    counts = last[2] - first[2]
    fleet = sum(number for kind, number in counts.items() if kind.startswith("Fleet") or kind == "polls")
    fleet -= counts["Fleet PullMessages"]  # what a held poll asks again: the polls are counted
    runtime = sum(number for kind, number in counts.items() if kind.startswith("Runtime"))
    clients.send_signal(signal.SIGTERM)
    clients.wait(120)
    return result | {
        "superlink_mib_largest": largest,
        "superlink_threads": process.num_threads(),
        "seconds_a_round": seconds / rounds,
        "superlink_cpu_s_a_round": (last[3] - first[3]) / rounds,
        "fleet_requests_a_second": fleet / seconds,
        "runtime_requests_a_second": runtime / seconds,
        "fleet_requests_a_round": fleet / rounds,
        **checked(folder, json.loads(file.read_text()), arguments),
    }


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--clients-per-round", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--database", action="store_true", help="the SuperLink keeps its state in a file")
    arguments = parser.parse_args()
    from machine import described

    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedappeal-connections-")))
        result = measure(arguments, root, stack)
    for name, value in result.items():
        print(f"{name:<28}{len(value) if isinstance(value, list) else format(value, '.6g'):>14}")
    if arguments.json:
        said = {key: getattr(arguments, key) for key in ("clients", "clients_per_round", "rounds", "database")}
        arguments.json.write_text(json.dumps({**described(), **said, **result}, indent=2) + "\n")


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.argv[1:2] == ["--be-clients"]:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        asyncio.run(be_clients(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
    else:
        main()
