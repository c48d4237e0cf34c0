"""Promise: 200 nodes that join within a second, and 10,000 polls of one node, cost honest clients no round."""

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.node_pb2 import Node

from fedappeal.flower.node.signing import Signer
from fedappeal.record.reader import Record
from tests.hostile.federation import Federation, federation

NODES, POLLS, AT_ONCE = 200, 10_000, 32
CLIENTS, ROUNDS = 3, 8
ONLINE = 120.0


class Flood(threading.Thread):
    """Nodes of one process, with a key each and without PyTorch; none answers a message.

    Attributes:
        joined_in: seconds that all took to register and go online.
        answers: how the SuperLink answered to polls: the status code's name, or ``OK``.
        error: what went wrong.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.joined_in, self.answers, self.error = 0.0, Counter[str](), ""
        self._address = address
        self._signers = [Signer(ec.generate_private_key(ec.SECP256R1())) for _ in range(NODES)]

    def run(self) -> None:
        """Join with all nodes at once, then poll with one."""
        try:
            asyncio.run(self._flood())
        except Exception as error:
            self.error = repr(error)

    async def _flood(self) -> None:
        async with grpc.aio.insecure_channel(self._address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: Any = FleetStub(channel)
            began = time.monotonic()
            nodes = await asyncio.gather(*(self._join(stub, signer) for signer in self._signers))
            self.joined_in = time.monotonic() - began
            await asyncio.gather(*(self._poll(stub, nodes[0]) for _ in range(AT_ONCE)))

    async def _join(self, stub: Any, signer: Signer) -> int:
        key, headers = signer.public_key, list(signer.headers())
        await stub.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=key), metadata=headers)
        request = fleet_pb2.ActivateNodeRequest(public_key=key, heartbeat_interval=ONLINE)
        return int((await stub.ActivateNode(request, metadata=headers)).node_id)

    async def _poll(self, stub: Any, node: int) -> None:
        poll = fleet_pb2.PullMessagesRequest(node=Node(node_id=node))
        while self.answers.total() < POLLS:
            headers = list(self._signers[0].headers())
            try:
                await stub.PullMessages(poll, metadata=headers, timeout=60)
                self.answers["OK"] += 1
            except grpc.aio.AioRpcError as error:
                self.answers[error.code().name] += 1


@pytest.mark.timeout(600)
def test_rounds_go_on_in_a_flood_of_nodes_and_polls(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": CLIENTS, "rounds": ROUNDS, "round_timeout": 60.0}
    with federation(tmp_path, attackers=0, **settings) as run:
        run.submit()
        wait_for_rounds(run, 1)
        flood = Flood(run.superlink.fleet_address)
        flood.start()
        run.follow(300)
        during = flood.is_alive()
        flood.join(300)
    assert not flood.error
    assert 0 < flood.joined_in < 20, "they do not join within a second or so"
    assert flood.answers.total() >= POLLS
    assert during or flood.answers["OK"] >= POLLS, "the run did not go on during the flood"
    assert [(line["joined"], line["failed"]) for line in run.history] == [(CLIENTS, 0)] * ROUNDS
    assert all(line["seconds"] < settings["round_timeout"] for line in run.history)
    ids = {line["client-id"] for line in Record(run.path).decisions}
    assert ids == {f"client-{number:04d}" for number in range(CLIENTS)}


def wait_for_rounds(run: Federation, count: int) -> None:
    """Wait until so many rounds are over."""
    until = time.monotonic() + 480
    while len(run.history) < count:
        assert time.monotonic() < until, run.log
        time.sleep(0.02)
