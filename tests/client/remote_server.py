"""A ServerApp that does what a test tells it through a socket, so that one run serves many tests."""

import time
from multiprocessing.connection import Client
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    with Client(str(context.run_config["socket"])) as test:
        while (command := test.recv())["op"] != "end":
            test.send(globals()[command.pop("op")](grid, **command))


def nodes(grid: Grid) -> list[int]:
    return sorted(grid.get_node_ids())


def activated(grid: Grid, node: int) -> str:
    """Return when a node that is online last came online; empty: it is not online."""
    return next((node_info.last_activated_at for node_info in grid.get_nodes() if node_info.node_id == node), "")


def push(grid: Grid, node: int, kind: str, model: np.ndarray, config: dict[str, Any], ttl: float) -> str:
    content = RecordDict({"arrays": ArrayRecord({"flat": Array(model)}), "config": ConfigRecord(config)})
    return next(iter(grid.push_messages([Message(content, node, kind, ttl=ttl, group_id="7")])))


def pull(grid: Grid, message: str, deadline: float) -> dict[str, Any] | None:
    """Wait for a reply: what it holds, or None if none came."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        for reply in grid.pull_messages([message]):
            if reply.has_error():
                return {"error": (reply.error.code, reply.error.reason)}
            model = next(iter(reply.content.array_records.values()), None)
            return {
                "metrics": dict(reply.content["metrics"]),
                "config": dict(next(iter(reply.content.config_records.values()), {})),
                "model": None if model is None else model["flat"].numpy(),
            }
        time.sleep(0.02)
    return None
