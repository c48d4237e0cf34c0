"""Dropout drops the same units one by one, side by side in either form, in threads, and by a formula of its own."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from client.learner import Job
from client.training.models import arrays_of
from client.training.noise import Noise, active_masks, begin_forward_pass, keyed_dropout
from client.training.requests import Arithmetic, TrainRequest
from client.training.sgd import SGD
from fedappeal.protocol.draws import draw_seed
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation.forms.batched import BatchedForm, Examples
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.forms.scheduler import BatchScheduler, ClientQueue, ThreadedScheduler
from fedappeal.simulation.forms.vectorised import VmapForm
from fedappeal.simulation.process_wide import single_threaded_workers
from fedappeal.tasks.examples import Split
from tests.problems import Classification

CLIENTS, EXAMPLES = 5, 12


class Residual(nn.Module):
    """Dropout by function, by module and in place, before and after a skip connection; no chain of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden = hidden + functional.dropout(torch.tanh(self.inner(hidden)), 0.5, self.training)
        y: Tensor = self.last(self.drop(hidden * 2))
        return y


class Convolutional(nn.Module):
    """Images with dropout before and after pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 2, 2), nn.Linear(2, 3)
        self.below, self.above = nn.Dropout(0.2), nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.max_pool2d(self.below(functional.relu(self.first(x.reshape(-1, 1, 2, 3)))), (1, 2))
        out: Tensor = self.last(self.above(y.flatten(1)))
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], type[BatchedForm]]] = {
    "layers": (
        lambda: nn.Sequential(
            nn.Dropout(0.1), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3), nn.Dropout(0.0)
        ),
        LayeredForm,
    ),
    "images in layers": (Convolutional, LayeredForm),
    "vmap": (Residual, VmapForm),
    "images by vmap": (Convolutional, VmapForm),
}


class Joined:
    """The examples of the requests, one after another."""

    device = torch.device("cpu")

    def examples(self, split: str, of_clients: Mapping[int, Split]) -> Examples:
        parts = list(of_clients.values())
        start = [0, *accumulate(len(part) for part in parts)]
        places = {client: place for place, client in enumerate(of_clients)}
        return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]), start, places)


def requests(model: nn.Module, one_size: bool, dropout_noise: str = "keyed") -> list[TrainRequest]:
    """Local training of all clients; with other numbers of steps each, and of examples unless one size is wanted."""
    training = LocalTrainingSettings.parse(
        {"learning-rate": 0.3, "batch-size": 4, "local-steps": 3, "momentum": 0.5, "dropout-noise": dropout_noise}
    )
    task, arrays = Classification(), arrays_of(model)

    def request(k: int) -> TrainRequest:
        draws = torch.Generator().manual_seed(k)
        count, size = (EXAMPLES, 4) if one_size or k % 2 else (3, 3)
        data = Split(torch.randn(count, 6, generator=draws), torch.randint(0, 3, (count,), generator=draws))
        batches = np.random.default_rng(k).integers(0, count, (2 + k, size))
        what = task, model, k, data, arrays, Job(SGD(), training, "batches", 2), batches
        return TrainRequest(*what, seed=3, client_id=f"client-{k}")

    return [request(k) for k in range(CLIENTS)]


def results(queue: ClientQueue, asked: list[TrainRequest]) -> list[Arrays]:
    for request in asked:
        queue.start(request.client_id, partial(queue.train, request))
    found: dict[str, Arrays] = {}
    while left := [request.client_id for request in asked if request.client_id not in found]:
        found |= queue.results(left)
    return [found[request.client_id] for request in asked]


def assert_close(found: list[Arrays], expected: list[Arrays]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_side_by_side_the_same_units_are_dropped_as_one_by_one(name: str) -> None:
    torch.manual_seed(0)
    build, kind = MODELS[name]
    model = build()
    form: Any = kind(Classification(), model)  # type: ignore[call-arg]
    asked = requests(model, form.one_size)
    together = results(BatchScheduler(Joined(), form), asked)  # type: ignore[arg-type]
    assert_close(together, [Arithmetic().train(request) for request in asked])
    older = requests(model, form.one_size, "stream")
    by_stream = [Arithmetic().train(request) for request in older]
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(together, by_stream)


def test_in_threads_the_same_units_are_dropped_and_clients_go_on_beside_each_other() -> None:
    torch.manual_seed(0)
    model = Residual()
    asked = requests(model, one_size=False)
    expected = [Arithmetic().train(request) for request in asked]
    with single_threaded_workers(3) as workers:
        assert workers is not None
        scheduler = ThreadedScheduler(workers, 3)
        assert_close(results(scheduler, asked), expected)
        assert scheduler._together(asked[0])


def kept_by_formula(noise: Noise, layer: int, step: int, shape: tuple[int, ...], rate: float) -> Tensor:
    """The units that are kept, each generator made anew from its key and counter."""
    key = draw_seed(noise.seed, "dropout", client=noise.client, server_round=noise.server_round)
    generator = np.random.Generator(np.random.Philox(key=key, counter=[0, layer, step, 0]))
    return torch.from_numpy(generator.random(shape, dtype=np.float32) >= rate)


def test_each_mask_is_a_function_of_seed_client_round_step_layer_and_example() -> None:
    noise, x = Noise(1, "client/batches", 4), torch.ones(5, 7)
    masks = {}
    for step in (0, 3):
        with keyed_dropout([noise]):
            begin_forward_pass(step)
            for layer, rate in enumerate((0.25, 0.5)):
                kept = kept_by_formula(noise, layer, step, (5, 7), rate)
                masks[step, layer] = functional.dropout(x, rate)
                assert torch.equal(masks[step, layer], kept / (1 - rate))
    with keyed_dropout([noise]):
        begin_forward_pass(3)
        assert torch.equal(functional.dropout(torch.ones(9, 7), 0.25)[:5], masks[3, 0]), "whatever comes after them"
    for other in (noise._replace(seed=2), noise._replace(client="b"), noise._replace(server_round=5)):
        with keyed_dropout([other]):
            begin_forward_pass(0)
            assert not torch.equal(functional.dropout(x, 0.25), masks[0, 0])


def test_outside_of_a_calculation_dropout_is_pytorchs_and_a_rate_of_0_or_1_draws_nothing() -> None:
    x = torch.ones(3, 4)
    with keyed_dropout([Noise(0, "a", 1)]):
        begin_forward_pass(0)
        assert torch.equal(functional.dropout(x, 0.0), x)
        assert not functional.dropout(x, 1.0).any()
        assert functional.dropout(x, 0.5, training=False) is x
        kept = functional.dropout(x.clone(), 0.5, inplace=True)
        assert torch.equal(kept / 2, kept_by_formula(Noise(0, "a", 1), 0, 0, (3, 4), 0.5).float())
        with pytest.raises(ValueError, match="between 0 and 1"):
            functional.dropout(x, 1.5)
    assert active_masks() is None
    torch.manual_seed(5)
    found = functional.dropout(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(found, torch.dropout(x, 0.5, True))


def test_a_mask_by_the_generator_is_what_earlier_versions_drew() -> None:
    with keyed_dropout([Noise(0, "a", 1, keyed=False)]):
        assert active_masks() is None
