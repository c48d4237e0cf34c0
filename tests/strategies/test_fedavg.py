"""FedAvg here and Flower's own: the same model from the same replies of clients that know nothing of volunteers."""

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from hypothesis import example, given
from hypothesis import strategies as st

from strategies import FedAvg
from tests.grid import MemoryGrid
from tests.strategies.foreign import Foreign, Layers, record, trained

SHAPES: dict[str, tuple[int, ...]] = {
    "conv.weight": (4, 3, 5, 5),
    "conv.bias": (4,),
    "scale": (),
    "head.weight": (7, 2),
}


def layers(rng: np.random.Generator, dtype: type[np.floating]) -> Layers:
    return {name: np.asarray(rng.normal(scale=3.0, size=shape)).astype(dtype) for name, shape in SHAPES.items()}


def opened(strategy: FedAvg, start: ArrayRecord, clients: int) -> list[Message]:
    """The messages of a round, as a grid that only knows node ids sends them."""
    grid = MemoryGrid({10 + k: Foreign(0.0, 1).handler(10 + k) for k in range(clients)})
    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    grid.push_messages(messages)
    return sorted(messages, key=lambda m: m.metadata.dst_node_id)


def check_same(ours: ArrayRecord | None, theirs: ArrayRecord | None, tolerance: float, largest: float = 1.0) -> None:
    """Check that two models are the same up to a share of the largest value that float32 rounded on the way."""
    assert ours is not None
    assert theirs is not None
    assert list(ours) == list(theirs) == list(SHAPES)
    for name, array in theirs.items():
        assert (ours[name].shape, ours[name].dtype) == (array.shape, array.dtype)
        atol = tolerance * max(largest, float(np.abs(array.numpy()).max()))
        np.testing.assert_allclose(ours[name].numpy(), array.numpy(), rtol=tolerance, atol=atol)


def both(replies: Sequence[Message], strategy: FedAvg) -> tuple[ArrayRecord | None, ArrayRecord | None]:
    theirs, _ = FlowersFedAvg().aggregate_train(1, list(replies))
    ours, metrics = strategy.aggregate_train(1, replies)
    assert metrics is not None
    assert (metrics["joined"], metrics["failed"]) == (len(replies), 0)
    return ours, theirs


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32 - 1),
)
@example([1447, 1447, 1500, 1500, 1447, 976], np.float32, 0)
def test_the_same_replies_give_the_same_model(examples: list[int], dtype: type[np.floating], seed: int) -> None:
    rng, strategy = np.random.default_rng(seed), FedAvg()
    messages = opened(strategy, record(layers(rng, dtype)), len(examples))
    models = [layers(rng, dtype) for _ in messages]
    replies = [trained(m, model, n) for m, model, n in zip(messages, models, examples, strict=True)]
    assert all(set(reply.content) == {"arrays", "metrics"} for reply in replies)
    assert all(set(reply.content.metric_records["metrics"]) == {"num-examples"} for reply in replies)
    # What float32 rounds is each term of the sum, of which the mean may be much smaller.
    largest = max(float(np.abs(layer).max()) for model in models for layer in model.values())
    check_same(*both(replies, strategy), 1e-6, largest if dtype is np.float32 else 1.0)


def test_two_layers_by_hand() -> None:
    shapes = {"a": np.zeros(2, np.float32), "b": np.float32(0)}
    strategy = FedAvg()
    first, second = opened(strategy, record(shapes), 2)
    replies = [
        trained(first, {"a": np.array([1, 2], np.float32), "b": np.float32(4)}, 30),
        trained(second, {"a": np.array([5, -2], np.float32), "b": np.float32(0)}, 10),
    ]
    for arrays in both(replies, strategy):
        assert arrays is not None
        assert arrays["a"].numpy().tolist() == [2.0, 1.0]  # (30 (1, 2) + 10 (5, -2)) / 40
        assert float(arrays["b"].numpy()) == 3.0


def test_several_rounds_of_flowers_own_clients_are_the_same() -> None:
    """Flower's FedAvg and this one over the same ClientApps, each in its own loop."""
    start = layers(np.random.default_rng(0), np.float32)
    clients = {10 + k: Foreign(step=0.5 * k - 0.25, examples=10 * k + 1) for k in range(4)}

    def grid() -> MemoryGrid:
        return MemoryGrid({node: client.handler(node) for node, client in clients.items()})

    theirs = FlowersFedAvg(min_train_nodes=4, min_evaluate_nodes=4, min_available_nodes=4).start(
        grid(), record(start), num_rounds=3
    )
    ours = FedAvg(min_clients=4).start(grid(), record(start), num_rounds=3)
    check_same(ours.arrays, theirs.arrays, 1e-6)
