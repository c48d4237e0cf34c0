"""Which clients are answered together: first those that do not train, then those that train, as one batch."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock
from weakref import WeakSet

import numpy as np
import pytest
import torch
from greenlet import getcurrent, greenlet
from torch import nn

from client.training.requests import EvaluateRequest
from fedappeal.simulation.evaluation import for_inference
from fedappeal.simulation.forms.scheduler import AT_ONCE, BatchScheduler


class Recorder(BatchScheduler):
    """Answers every request with itself, and notes what was answered at once."""

    def __init__(self, largest_batch: int = 32, at_once: int = 512) -> None:
        super().__init__(None, Mock(largest_batch=largest_batch), at_once=at_once)  # type: ignore[arg-type]
        self.at_once: list[list[Any]] = []

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        self.at_once.append([str(r) for r in requests])
        return list(requests)


class Question(EvaluateRequest):
    def __init__(self, name: str) -> None:
        object.__setattr__(self, "name", name)

    def __str__(self) -> str:
        return f"measure {self.name}"  # type: ignore[attr-defined]


def volunteer(name: str, joins: bool) -> Callable[[], str]:
    def client() -> str:
        getcurrent().parent.switch(Question(name))
        if not joins:
            return f"{name} sat out"
        getcurrent().parent.switch(f"train {name}")
        return f"{name} joined"

    return client


def test_a_wave_is_measured_at_once_and_then_trained_at_once() -> None:
    clients = Recorder()
    for name, joins in [("a", False), ("b", True), ("c", False), ("d", True), ("e", True)]:
        clients.start(name, volunteer(name, joins))
    # Two are wanted: a window of two, which slides over those that sat out.
    assert clients.results(["a", "b"]) == {"a": "a sat out"}
    assert clients.results(["b", "c"]) == {"c": "c sat out"}
    assert clients.results(["b", "d"]) == {"b": "b joined", "d": "d joined"}
    assert clients.results(["e"]) == {"e": "e joined"}
    assert clients.at_once == [
        [f"measure {name}" for name in "abcde"],
        ["train b", "train d", "train e"],
    ]


def knowing(name: str, joins: bool) -> Callable[[], str]:
    """A client that has measured this model before."""

    def client() -> str:
        if joins:
            getcurrent().parent.switch(f"train {name}")
        return f"{name} {'joined' if joins else 'sat out'}"

    return client


def test_clients_that_join_in_several_waves_train_together() -> None:
    clients = Recorder()
    for name, joins in [("a", True), ("b", False)]:
        clients.start(name, knowing(name, joins))
    assert clients.results(["a", "b"]) == {"b": "b sat out"}
    assert clients.at_once == []  # a waits, because b's place may be taken by one that trains as well
    for name, joins in [("c", False), ("d", True)]:
        clients.start(name, knowing(name, joins))
    assert clients.results(["a", "c"]) == {"c": "c sat out"}
    assert clients.results(["a", "d"]) == {"a": "a joined", "d": "d joined"}
    assert clients.at_once == [["train a", "train d"]]


def test_no_more_are_trained_with_the_clients_asked_for_than_fit_into_the_batch() -> None:
    clients = Recorder(largest_batch=2)
    for name in "abcde":
        clients.start(name, volunteer(name, True))
    assert list(clients.results(["c"])) == ["c"]
    assert list(clients.results(["a", "b", "d", "e"])) == ["a"]  # trained with c
    assert list(clients.results(["b", "d", "e"])) == ["b", "d", "e"]
    assert clients.at_once[1:] == [["train c", "train a"], ["train b", "train d", "train e"]]


def test_a_client_that_was_not_given_or_has_answered_is_passed_over() -> None:
    clients = Recorder()
    clients.start("a", volunteer("a", False))
    assert clients.results(["unknown"]) == {}
    assert clients.results(["a", "unknown"]) == {"a": "a sat out"}
    assert clients.results(["a"]) == {}


@pytest.mark.parametrize("joining", ["", "bd", "abcde"])
def test_more_clients_than_may_be_under_way_are_all_answered(joining: str) -> None:
    clients = Recorder(largest_batch=2, at_once=2)
    for name in "abcde":
        clients.start(name, volunteer(name, name in joining))
    left, results = list("abcde"), {}
    while left:
        came = clients.results(left)
        assert came
        results |= came
        left = [name for name in left if name not in came]
    assert results == {name: f"{name} {'joined' if name in joining else 'sat out'}" for name in "abcde"}


def test_no_client_begins_beside_as_many_as_may_be_under_way() -> None:
    """Each would be measured alone, where those that come later are measured together."""
    clients = Recorder(largest_batch=2, at_once=2)
    for name in "abcd":
        clients.start(name, volunteer(name, True))
    assert list(clients.results(list("abcd"))) == ["a", "b"]
    assert list(clients.results(["d"])) == ["d"]
    assert clients.at_once == [
        ["measure a", "measure b"],
        ["train a", "train b"],
        ["measure c", "measure d"],
        ["train d", "train c"],
    ]


@pytest.mark.parametrize("joining", ["", "bd", "abcdef"])
def test_as_many_greenlets_as_are_under_way_run_all_clients_and_keep_none_of_them(joining: str) -> None:
    """Each has memory of its own from the system, which takes longer than what most clients do."""
    clients, ran_in = Recorder(largest_batch=2, at_once=2), WeakSet[greenlet]()

    class Reply:
        """As large as a model."""

    def client(name: str) -> Reply:
        ran_in.add(getcurrent())
        volunteer(name, name in joining)()
        return Reply()

    left, replies = set("abcdef"), WeakSet[Reply]()
    for name in sorted(left):
        clients.start(name, partial(client, name))
    gc.disable()
    try:
        while left:
            came = clients.results(sorted(left))
            left -= came.keys()
            replies.update(came.values())
            del came
            assert not replies
        assert len(ran_in) == 2
        del clients
        assert not ran_in
    finally:
        gc.enable()


def test_what_one_client_sets_for_its_context_does_not_reach_the_next() -> None:
    """NumPy's handling of errors, for one."""
    clients = Recorder()

    def client() -> str:
        before = np.geterr()["over"]
        np.seterr(over="raise")
        return before

    for name in "abc":
        clients.start(name, client)
    assert clients.results(list("abc")) == dict.fromkeys("abc", "warn")
    assert np.geterr()["over"] == "warn"


def test_a_named_client_begins_without_room_where_only_others_are_under_way() -> None:
    clients = Recorder(largest_batch=2, at_once=2)
    for name in "abc":
        clients.start(name, volunteer(name, True))
    assert clients.results(["a", "b"], train=False) == {}
    assert clients.results(["c"]) == {"c": "c joined"}
    assert clients.at_once == [["measure a", "measure b"], ["measure c"], ["train c", "train a"]]


@pytest.mark.parametrize("bias", [True, False])
def test_the_model_for_inference_has_the_same_outputs_and_the_model_stays_as_it_is(bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, 7, bias=bias)
    model = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Sequential(nn.Linear(7, 3)), nn.Softplus()).eval()
    x = torch.randn(50, 3, 100)
    with torch.no_grad():
        own = layer.bias.double() if bias else 0.0
        by_hand = torch.relu(x.reshape(50, 300).double() @ layer.weight.double().T + own)
        expected = nn.functional.softplus(model[3](by_hand.float()))
        torch.testing.assert_close(for_inference(model)(x), expected, rtol=1e-5, atol=1e-5)
    assert model[1] is layer
    assert type(model[3][0]) is nn.Linear
    if torch.backends.mkldnn.is_available():
        # The operator is not part of PyTorch's documented interface: a release without it must be noticed here.
        assert nn.Linear not in map(type, for_inference(model).modules())


def test_a_model_that_reads_its_layers_weights_can_be_evaluated() -> None:
    """PyTorch's own encoder layer does, in evaluation mode."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        torch.testing.assert_close(for_inference(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_of_clients_that_train_alone_no_more_replies_are_held_than_began_together() -> None:
    clients = Recorder()

    def alone() -> str:
        clients._trained_alone = True  # as where a rule has no batched form
        return "joined"

    for number in range(1500):
        clients.start(str(number), alone)
    assert len(clients.results([str(number) for number in range(1500)])) == AT_ONCE
