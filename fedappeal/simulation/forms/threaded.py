"""Clients that train one by one, on as many cores as there are workers."""

import copy
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import torch
from greenlet import getcurrent
from torch import nn

from client.training.requests import TrainRequest, train_without_seed
from fedappeal.protocol.draws import TORCH_GENERATOR
from fedappeal.protocol.packing import Arrays
from fedappeal.simulation.forms.scheduler import ClientQueue, answer

_OURS = ("fedappeal.core.", "client.training.", "strategies.")
"""Where rules are known to keep nothing but what a client hands them."""
A_WORKER = 4
"""Clients that train at once, by the number of workers: those that take longer than others hold up fewer."""


def may_share(request: TrainRequest) -> bool:
    """Return whether a training may run beside others: on a CPU, by a task's and a rule's code known to allow it."""
    return (
        request.data.device.type == "cpu"
        and request.deadline is None
        and request.task.is_plain()
        and type(request.rule).__module__.startswith(_OURS)
    )


class ThreadedScheduler(ClientQueue):
    """Clients' trainings side by side in threads, each with the arithmetic of a deployed client.

    PyTorch has one generator for all threads. Where a training draws noise, the results of all that ran beside it are
    thrown away, and from then on clients take turns: each draws what it draws alone.

    Args:
        workers: calculate on one thread each.
        number: how many there are.
    """

    def __init__(self, workers: Executor, number: int) -> None:
        super().__init__(A_WORKER * number, at_once=A_WORKER * number)
        self._workers, self._number = workers, number
        self._models: dict[nn.Module, SimpleQueue[nn.Module]] = {}
        """By model: copies that no worker is using."""
        self._draws = False

    def train(self, request: TrainRequest) -> Arrays:
        """Wait for the other clients, and train beside them."""
        all_clients = getcurrent().parent
        if all_clients is None or self._draws or not may_share(request):
            return self._train_alone(request)
        trained: Arrays = all_clients.switch(request)
        return trained

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        """Answer trainings: beside each other, or one by one where they draw noise."""
        for model in {request.model for request in requests} - self._models.keys():
            self._models[model] = SimpleQueue()
            for _ in range(self._number):
                self._models[model].put(copy.deepcopy(model))
        if not self._draws:
            with TORCH_GENERATOR:
                before = torch.default_generator.get_state()
                answers = list(self._workers.map(self._one, requests))
                self._draws = not torch.equal(before, torch.default_generator.get_state())
                torch.default_generator.set_state(before)
            if not self._draws:
                return answers
        alone = super().train
        return [answer(alone, request) for request in requests]

    def _one(self, request: TrainRequest) -> Any:
        """Return a client's trained model, or its error."""
        free = self._models[request.model]
        model = free.get()
        try:
            return answer(train_without_seed, replace(request, model=model))
        finally:
            free.put(model)
