"""How often a round would wait for an accelerator: what copies to and from a device, counted on the CPU."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedappeal
from client.learner import Job
from client.training import devices
from client.training.models import arrays_of
from client.training.requests import Arithmetic, EvaluateRequest, GradientRequest, Request, TrainRequest
from client.training.sgd import SGD, AdamW
from fedappeal.core.local_rule import LocalRule
from fedappeal.protocol.keys import TEST_SPLIT
from fedappeal.settings.config import RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.simulation import evaluation
from fedappeal.simulation.forms import scheduler
from fedappeal.simulation.forms.choice import form_of
from fedappeal.simulation.forms.layered import LayeredForm
from fedappeal.simulation.forms.scheduler import BatchScheduler
from fedappeal.simulation.pool import Pool
from fedappeal.tasks import load_task
from strategies.fedprox import FedProx
from strategies.perfedavg import PerFedAvg
from strategies.pfedme import PFedMe

CLIENTS = 5
_WAITS = ("cpu", "item", "tolist", "__bool__", "__float__", "__int__")
_SIZES = ("nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_consecutive", "repeat_interleave")
"""Operators that read values: those of a result whose size or whose use depends on them."""


class Waits(TorchFunctionMode):
    """Counts what reads a tensor's values, copies them to the host, or waits where it copies them to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()
        self._uploaded: dict[int, torch.Tensor] = {}
        self._on_host: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = getattr(func, "__name__", ""), kwargs or {}
        result = func(*args, **named)
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        on_host = name not in ("to", "copy_") and bool(tensors) and all(id(t) in self._on_host for t in tensors)
        if isinstance(result, torch.Tensor) and (name == "cpu" or on_host):
            self._on_host[id(result)] = result
        if on_host:
            return result
        if name == "to" and named.get("non_blocking"):
            self._uploaded[id(result)] = result
        uploads = name == "to" and any(isinstance(value, torch.device) for value in args)
        copies = name == "copy_" and id(args[1]) not in self._uploaded
        if name in _WAITS or copies or (uploads and not named.get("non_blocking")):
            self.counted[name] += 1
        return result


class Sizes(TorchDispatchMode):
    """Counts operators that wait inside PyTorch, among a round's."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._counted = waits.counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := func.overloadpacket.__name__) in _SIZES:
            self._counted[name] += 1
        return func(*args, **(kwargs or {}))


class Several:
    """Clients of a task, their requests, and what answers them."""

    def __init__(self, mode: str) -> None:
        config = RunConfig.parse({"task": "digits", "model": "mlp", "clients": CLIENTS})
        self.task = load_task(config.task_settings())
        self.module = self.task.initial_model(0)
        self.pool = Pool(self.task, range(CLIENTS), torch.device("cpu"))
        form = form_of(mode, self.task, self.module)
        self.scheduler = None if form is None else BatchScheduler(self.pool, form)

    def waits(self, request: Callable[[int], Request]) -> Counter[str]:
        requests = [request(k) for k in range(CLIENTS)]
        with Waits() as waits:
            if self.scheduler is not None:
                self.answers = self.scheduler._answers(requests)  # type: ignore[arg-type]
                assert not any(isinstance(answer, Exception) for answer in self.answers)
            for one in requests if self.scheduler is None else ():
                kinds = {TrainRequest: "train", EvaluateRequest: "evaluate", GradientRequest: "gradient"}
                getattr(Arithmetic(), kinds[type(one)])(one)
        return waits.counted

    def train(self, rule: LocalRule, k: int) -> TrainRequest:
        training = LocalTrainingSettings(learning_rate=0.1, batch_size=4, local_steps=3)
        data = self.pool.client(k).train
        rows = np.arange(3 * rule.draws() * 4).reshape(-1, 4) % len(data)
        what = self.task, self.module, k, data, arrays_of(self.module), Job(rule, training, "batches", 1), rows
        return TrainRequest(*what, seed=0, client_id=str(k))

    def evaluate(self, k: int) -> EvaluateRequest:
        what = self.task, self.module, k, self.pool.client(k).test, arrays_of(self.module)
        return EvaluateRequest(*what, split=TEST_SPLIT, shared="the model")

    def gradient(self, k: int) -> GradientRequest:
        return GradientRequest(self.task, self.module, k, self.pool.client(k).train, arrays_of(self.module), None)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU count as an accelerator."""
    monkeypatch.setattr(devices, "HOSTS", set())
    monkeypatch.setattr(devices, "QUEUES", {"cpu"})


@pytest.mark.parametrize(
    "rule",
    [
        SGD(),
        AdamW(AdamW.Settings()),
        FedProx.LocalRule(FedProx.Settings()),
        PFedMe.LocalRule(PFedMe.Settings()),
        PerFedAvg.LocalRule(PerFedAvg.Settings()),
    ],
)
@pytest.mark.parametrize(("mode", "waits"), [("sequential", CLIENTS), ("layers", 1), ("vmap", 1)])
def test_training_waits_once_for_a_client_alone_and_once_for_all_side_by_side(
    mode: str, waits: int, rule: LocalRule
) -> None:
    several = Several(mode)
    assert several.waits(partial(several.train, rule)) == {"cpu": waits}


@pytest.mark.parametrize("mode", ["layers", "vmap"])
def test_clients_side_by_side_are_measured_and_differentiated_with_one_wait(mode: str) -> None:
    several = Several(mode)
    assert several.waits(several.evaluate) == {"cpu": 1}
    if mode == "layers":  # vmap takes equally many examples at once, and these clients have others
        assert several.waits(several.gradient) == {"cpu": 1}


def test_one_by_one_each_client_is_waited_for() -> None:
    several = Several("sequential")
    assert several.waits(several.evaluate) == {"__float__": CLIENTS, "cpu": CLIENTS}
    assert several.waits(several.gradient) == {"cpu": CLIENTS}


def test_what_is_copied_at_once_is_what_was_there() -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "n": torch.tensor(3), "b": torch.ones(0, 2), "c": torch.eye(2)}
    copied = devices.on_host(tensors)
    assert list(copied) == list(tensors)
    for name, tensor in tensors.items():
        assert copied[name].dtype == tensor.numpy().dtype
        assert np.array_equal(copied[name], tensor.numpy())


@pytest.mark.parametrize(("kind", "waits"), [("cuda", False), ("mps", True)])
def test_a_copy_to_a_device_waits_where_nothing_sets_the_values_aside(
    kind: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of what lets the CPU count as an accelerator
    values = Mock()
    devices.on_device(values, torch.device(kind))
    values.to.assert_called_once_with(torch.device(kind), non_blocking=not waits)


@pytest.mark.parametrize(("room", "waits"), [(1 << 30, 1), (0, 3)])
def test_where_a_device_has_no_room_for_all_results_each_batch_of_clients_is_waited_for(
    room: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LayeredForm, "largest_batch", 2)
    monkeypatch.setattr(scheduler, "ON_DEVICE", room)
    several = Several("layers")
    assert several.waits(partial(several.train, SGD())) == {"cpu": waits}
    alone = [several.train(SGD(), k) for k in range(CLIENTS)]
    for trained, expected in zip(several.answers, map(Arithmetic().train, alone), strict=True):
        for name, array in trained.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6)


def test_a_copy_that_fails_is_each_clients_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("no room")
    monkeypatch.setattr(scheduler, "on_host", Mock(side_effect=error))
    several = Several("layers")
    assert several.scheduler is not None
    assert several.scheduler._answers([several.evaluate(k) for k in range(CLIENTS)]) == [error] * CLIENTS


def test_an_error_while_results_are_read_is_that_of_their_batch_alone() -> None:
    def refused(_: object) -> list[object]:
        raise IndexError("no example")

    sound = devices.Launched({"a": torch.ones(2)}, lambda arrays: [arrays["a"].tolist()])
    first, second = scheduler._read([sound, devices.Launched({}, refused)])
    assert first == [[1.0, 1.0]]
    assert isinstance(second, IndexError)


PAPERS = {"judge_on": "train", "adaptation_steps": 0}


@pytest.mark.parametrize(
    ("settings", "clients_at_once", "examples_at_once", "waits"),
    [(PAPERS, 32, 2048, 3), (PAPERS | {"local_steps": 20}, 4, 64, 3), ({"local_steps": 20}, 4, 256, 5)],
)
def test_a_rounds_waits_are_as_many_whatever_its_steps_and_its_batches_of_clients_and_examples(
    settings: dict[str, Any],
    clients_at_once: int,
    examples_at_once: int,
    waits: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One for the updates, one for the models that clients judge, and one for each split that is measured."""
    monkeypatch.setattr(LayeredForm, "largest_batch", clients_at_once)
    monkeypatch.setattr(evaluation, "CHUNK", examples_at_once)
    counted, after = Waits(), list[Counter[str]]()
    with counted, Sizes(counted):
        fedappeal.simulate(
            **{"task": "digits", "model": "mlp", "clients": 10, "participation": "always", "rounds": 2} | settings,
            on_round=lambda finished: after.append(Counter(counted.counted)),
            mode="batched",
            threads=1,
            quiet=True,
            out=str(tmp_path / "run"),
        )
    assert after[1] - after[0] == {"cpu": waits}
