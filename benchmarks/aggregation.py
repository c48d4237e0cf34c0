"""Time and peak memory of aggregating a round's replies into the next global model.

Every strategy takes the same replies, one after another; beside it stand Flower's FedAvg and one plain pass over the
same bytes (NumPy multiply-add), and for ADA-GD a float64 Gram matrix and an SVD of the same gradients. Absolute
figures say little on a shared machine: read the ratios, which come from interleaved repetitions.
``python benchmarks/aggregation.py --json FILE``
"""

import argparse
import json
import logging
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from machine import described
from numpy.typing import NDArray

from fedappeal.flower.messages import be_server
from fedappeal.protocol import keys
from fedappeal.protocol.packing import view
from strategies.adagd import AdaGD
from strategies.fedalign.strategy import PRIORITY, FedALIGN
from strategies.fedavg import FedAvg
from strategies.maxfl import APPEAL_WEIGHT, MaxFL
from strategies.mwfed import SATISFIED, MWFed
from strategies.pfedme import PFedMe
from strategies.qfedavg import QFedAvg
from strategies.rounds.exchange.members import Member
from strategies.rounds.strategy import Strategy
from strategies.scaffold import CONTROL_DELTA, Scaffold

SIZES = {"1.2M": 1_200_000, "11.7M": 11_700_000}
COUNTS = (10, 100)
DISTINCT = 10
"""Different models among the replies: more would not fit into a laptop's memory, fewer would sit in its caches."""
LEAVING = 10
"""Clients of ADA-GD that are predicted to leave."""

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "MaxFL": MaxFL,
    "FedALIGN": lambda: FedALIGN(epsilon=10.0, warmup_rounds=0, global_loss="stale"),
    "FedAvg": FedAvg,
    "QFedAvg": lambda: QFedAvg(q=1.0, learning_rate=0.1),
    "Scaffold": Scaffold,
    "MWFed": lambda: MWFed(local_steps=10),
    "PFedMe": PFedMe,
    "AdaGD": lambda: AdaGD(step_size=1e-6, precision=0.3),
}


class Replies:
    """A round's replies: every client joins, reports what any strategy asks for, and sends one of a few models."""

    def __init__(self, size: int, distinct: int = DISTINCT) -> None:
        # Flower takes a message's run and source from the process it is made in.
        be_server(1, 1, 1)
        logging.getLogger("flwr").setLevel(logging.WARNING)
        rng = np.random.default_rng(0)
        self.sent = ArrayRecord({"flat": Array(np.zeros(size, np.float32))})
        self._records = [
            ArrayRecord({"flat": Array(rng.standard_normal(size, dtype=np.float32))}) for _ in range(distinct)
        ]

    def models(self, count: int) -> Iterator[NDArray[np.generic]]:
        """Yield the models themselves, as views of the replies' bytes."""
        for i in range(count):
            yield view(self._records[i % len(self._records)]["flat"])

    def messages(self, count: int, two: bool = False) -> Iterator[Message]:
        """Yield the replies; ``two``: with a second record, as SCAFFOLD needs."""
        for i in range(count):
            record = self._records[i % len(self._records)]
            metrics = MetricRecord(
                {
                    keys.NUM_EXAMPLES: 100 + i,
                    keys.DECISION: 1,
                    APPEAL_WEIGHT: 0.1,
                    # At most twice ADA-GD's precision for the first, which are then predicted to leave.
                    keys.LOSS: 0.5 if i < min(LEAVING, count - 1) else 1.5,
                    SATISFIED: i % 2,
                    PRIORITY: (i + 1) % 2,
                }
            )
            content = RecordDict({keys.METRICS: metrics, keys.ARRAYS: record})
            if two:
                content[CONTROL_DELTA] = record
            question = Message(RecordDict({keys.CONFIG: ConfigRecord({})}), i + 2, "train")
            yield Message(content, reply_to=question)


def aggregate(name: str, replies: Replies, messages: Iterable[Message], count: int) -> None:
    """Aggregate one round by one of our strategies."""
    strategy = STRATEGIES[name]()
    members = {node: Member(str(node), node, "seen", node % 2 == 0, 100 + node - 2) for node in range(2, count + 2)}
    for member in members.values():
        strategy.members.enrol(member)
    strategy.members.set_online(members)
    if isinstance(strategy, FedALIGN):
        strategy.take_up({"fedalign": {"thetas": 0.0, "updates": 0, "global-loss": 1.0}})
    this_round = strategy.open_round(1, replies.sent)
    strategy.train_messages(this_round, strategy.members.online(), {}, 60.0)
    for message in messages:
        strategy.take(this_round, members[message.metadata.src_node_id], message)
    strategy.close_round(this_round)
    if this_round.record.failures:
        raise RuntimeError(f"{name}: replies were left out: {this_round.record.failures}")


def flower(messages: Iterable[Message]) -> None:
    """Aggregate one round by Flower's FedAvg."""
    FlowerFedAvg(weighted_by_key=keys.NUM_EXAMPLES).aggregate_train(1, list(messages))


def plain_pass(models: Iterable[NDArray[np.generic]], size: int) -> None:
    """Multiply and add each model once: ``total += weight * values``."""
    total = np.zeros(size, np.float32)
    for values in models:
        total += np.float32(0.1) * values


def plain_pass_in_place(models: Iterable[NDArray[np.generic]], size: int) -> None:
    """Do the same without fresh memory for each product: the least that a weighted average needs."""
    total, scratch = np.zeros(size, np.float32), np.empty(size, np.float32)
    for values in models:
        np.multiply(values, np.float32(0.1), out=scratch)
        np.add(total, scratch, out=total)


def gram64(models: Iterable[NDArray[np.generic]]) -> None:
    """Compute the float64 Gram matrix of gradients."""
    rows = np.stack([m.astype(np.float64) for m in models])
    rows @ rows.T


def svd(models: Iterable[NDArray[np.generic]]) -> None:
    """Decompose the same gradients in float64."""
    np.linalg.svd(np.stack([m.astype(np.float64) for m in models]), full_matrices=False)


def timings(size: int, count: int, repetitions: int) -> dict[str, list[float]]:
    """Return seconds of each arm, in interleaved repetitions."""
    replies = Replies(size)
    arms: dict[str, Callable[[], None]] = {
        "plain pass": lambda: plain_pass(replies.models(count), size),
        "plain pass in place": lambda: plain_pass_in_place(replies.models(count), size),
        "Flower's FedAvg": lambda: flower(ready),
    }
    for name in STRATEGIES:
        arms[name] = lambda name=name: aggregate(name, replies, ready, count)  # type: ignore[misc]
    arms[f"Gram matrix of {LEAVING}, float64"] = lambda: gram64(replies.models(LEAVING))
    arms[f"SVD of {LEAVING}, float64"] = lambda: svd(replies.models(LEAVING))
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repetitions):
        for name, arm in arms.items():
            ready = list(replies.messages(count, two=name == "Scaffold"))
            started = time.perf_counter()
            arm()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def peak_memory(arm: str, size: int, count: int) -> float:
    """Return the most MiB that aggregation held beyond the replies, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (arm, size, count))


def _peak_memory(arm: str, size: int, count: int) -> float:
    replies = Replies(size, distinct=1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is this process's past, or its parent's
    held = _resident("VmRSS")
    # Each reply has bytes of its own and comes when it is asked for, as from a grid.
    messages = (_own_bytes(m) for m in replies.messages(count, two=arm == "Scaffold"))
    if arm == "Flower's FedAvg":
        flower(messages)
    else:
        aggregate(arm, replies, messages, count)
    return (_resident("VmHWM") - held) / 1024


def _own_bytes(message: Message) -> Message:
    for name in (keys.ARRAYS, CONTROL_DELTA):
        record = message.content.get(name)
        if isinstance(record, ArrayRecord):
            array = record["flat"]
            copied = Array(array.dtype, array.shape, array.stype, bytes(bytearray(array.data)))
            message.content[name] = ArrayRecord({"flat": copied})
    return message


def _resident(field: str) -> int:
    """Resident KiB, now (VmRSS) or at most since the peak was cleared (VmHWM)."""
    fields = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in fields if line.startswith(field))


def main() -> None:
    """Measure, print the table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(SIZES), help="which model sizes, by commas")
    arguments = parser.parse_args()

    rows: list[dict[str, Any]] = []
    for label in arguments.sizes.split(","):
        for count in COUNTS:
            seconds = timings(SIZES[label], count, arguments.repetitions)
            medians = {name: statistics.median(s) for name, s in seconds.items()}
            plain = medians["plain pass"]
            gram = medians[f"Gram matrix of {LEAVING}, float64"]
            print(f"\n{count} replies of {label} parameters (plain pass {plain:.3f} s)")
            print(f"{'':<28}{'seconds':>9}{'/ plain':>9}{'/ Gram':>9}{'peak MiB':>10}")
            for name, median in medians.items():
                memory = peak_memory(name, SIZES[label], count) if name in (*STRATEGIES, "Flower's FedAvg") else None
                shown = f"{memory:>10.0f}" if memory is not None else f"{'':>10}"
                print(f"{name:<28}{median:>9.3f}{median / plain:>9.2f}{median / gram:>9.2f}{shown}", flush=True)
                rows.append(
                    {
                        "parameters": SIZES[label],
                        "replies": count,
                        "arm": name,
                        "seconds": seconds[name],
                        "over_plain_pass": median / plain,
                        "over_gram": median / gram,
                        "peak_mib": memory,
                    }
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({**described(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
