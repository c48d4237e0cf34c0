"""Many clients at once: each runs the ClientApp as it is, and waits where it trains until the others are there too.

A client is a greenlet. Where the app trains or evaluates, it hands its request to the `BatchScheduler` and is resumed
with the result, so that decisions, minibatches and state come from the very code that is deployed.
"""

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import Context
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, NoReturn
from weakref import proxy

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from client.training.devices import Launched, on_host
from client.training.noise import Noise, keyed_dropout, seeded_noise
from client.training.requests import (
    Arithmetic,
    EvaluateRequest,
    GradientRequest,
    TrainRequest,
    train_without_seed,
)
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol.draws import TORCH_GENERATOR
from fedappeal.protocol.keys import TRAIN_SPLIT
from fedappeal.protocol.packing import Arrays
from fedappeal.simulation.evaluation import ClientsEvaluation, evaluates_own, own_evaluations
from fedappeal.simulation.forms import batched
from fedappeal.simulation.forms.batched import BatchedForm, ModelParts, arrays_of_clients, line_up, steps_of_rows
from fedappeal.simulation.pool import ClientsData

Request = TrainRequest | GradientRequest | EvaluateRequest

EVALUATED = 256
"""Examples a client that are differentiated at once."""
AT_ONCE = 512
"""Most clients that are under way at once."""
UNDER_WAY_BYTES = 2 << 30
"""Most bytes of the models that they hold."""
_HELD = 4
"""Models of a client under way: its own, the one that it measures, the one from which it trains, its result."""
ON_DEVICE = 1 << 30
"""Bytes of results on an accelerator above which they are waited for before more is calculated."""
DONE_AT_ONCE = 8192
"""Replies after which no further clients begin, of clients that neither train nor evaluate."""


class ClientQueue(Arithmetic):
    """A queue of clients that wait at requests for their answers.

    Args:
        largest_batch: most clients that train at once.
        at_once: most clients that are under way at once.
    """

    def __init__(self, largest_batch: int, at_once: int = AT_ONCE) -> None:
        self._largest_batch, self._at_once = largest_batch, at_once
        self._trained_alone = False
        self._waiting: dict[str, Callable[[], Any]] = {}
        self._halted: dict[str, tuple[greenlet, Request]] = {}
        self._done: dict[str, Any] = {}
        self._free: list[greenlet] = []
        """Greenlets whose client has its result: to make one takes longer than to switch."""

    def start(self, name: str, client: Callable[[], Any]) -> None:
        """Add a client under a name; it runs only from `results` on."""
        self._waiting[name] = client

    def results(self, names: Sequence[str], train: bool = True) -> dict[str, Any]:
        """Return results of named clients, once some have theirs.

        All clients that wait may run up to where they train, so that the ones that train do so as one batch; a client
        that does not train has its result before the others have theirs.

        Args:
            names: clients that were given to `start` and whose result was not returned yet; others are passed over.
            train: whether clients train; else they run as far as they only measure, and there may be no result.
        """
        present = [name for name in names if name in self._waiting or name in self._halted or name in self._done]
        while present:
            self._begin(present)
            while self._may_go_on() and any(n in self._waiting for n in present):
                self._begin(present)
            if any(name in self._done for name in present) or not (train or self._measuring()):
                break
            self._run_on(present)
        return {name: self._done.pop(name) for name in present if name in self._done}

    def _may_go_on(self) -> bool:
        """Whether further clients may begin before any has trained.

        Their replies hold no models.
        """
        return not (self._halted or self._trained_alone) and len(self._done) < DONE_AT_ONCE

    def _begin(self, clients: Sequence[str]) -> None:
        """Run the named clients, and others in free places, to their first request."""
        first = dict.fromkeys(name for name in clients if name in self._waiting)
        others = (name for name in self._waiting if name not in first)
        # Without room one begins where none of the named can go on; more would measure one after another.
        room = max(self._at_once - len(self._halted), not any(name in self._halted for name in clients))
        self._trained_alone = False
        for name in list(islice(chain(first, others), room)):
            # Weak: what has begun is no part of a cycle that Python would find.
            client = self._free.pop() if self._free else greenlet(partial(ClientQueue._run, proxy(self)))
            client.gr_context = Context()  # NumPy's handling of errors is in it
            self._resume(name, client, client.switch, name)

    def _run_on(self, clients: Sequence[str]) -> None:
        """Answer clients' requests, and resume the clients."""
        asked: dict[str, Request] = self._measuring()
        if not asked:
            # Only training is due: of the named clients, and of others while they fit into the same batches.
            due = [name for name in clients if name in self._halted]
            wanted = set(due)
            others = (name for name in self._halted if name not in wanted)
            fits = -len(due) % self._largest_batch
            asked = {name: self._halted[name][1] for name in [*due, *islice(others, fits)]}
        for name, result in zip(asked, self._answers(list(asked.values())), strict=True):
            client, _ = self._halted.pop(name)
            step = client.throw if isinstance(result, Exception) else client.switch
            self._resume(name, client, step, result)

    def _measuring(self) -> dict[str, Request]:
        """Return the requests of clients that wait for a measurement, by client."""
        return {name: request for name, (_, request) in self._halted.items() if isinstance(request, EvaluateRequest)}

    def _resume(self, name: str, client: greenlet, step: Callable[[Any], Any], value: Any) -> None:
        """Resume a client, by a step that brings it a value, to its end or its next request."""
        if (request := step(value)) is None:
            self._free.append(client)
        else:
            self._halted[name] = (client, request)

    def _run(self, name: str) -> NoReturn:
        """Run a client to its result, then the next one that is named."""
        all_clients = getcurrent().parent
        assert all_clients is not None
        while True:
            self._done[name] = self._waiting.pop(name)()
            name = all_clients.switch(None)

    def train(self, request: TrainRequest) -> Arrays:
        """Wait for the other clients and train with them, alone where required.

        That is where the training may not run with others.
        """
        all_clients = getcurrent().parent
        if all_clients is not None and self._together(request):
            trained: Arrays = all_clients.switch(request)
            return trained
        self._trained_alone = True
        return super().train(request)

    def _together(self, request: TrainRequest) -> bool:
        """Whether a training may run with others."""
        raise NotImplementedError

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        """Return answers to requests, or errors to be raised in the client."""
        raise NotImplementedError


def clients_at_once(model: nn.Module) -> int:
    """Return the most clients that are under way at once with a model of this size."""
    size: int = _HELD * sum(tensor.nbytes for tensor in model.state_dict().values())
    return max(1, min(AT_ONCE, UNDER_WAY_BYTES // max(size, 1)))


class BatchScheduler(ClientQueue):
    """The arithmetic of many clients at once, on a pool's data.

    Args:
        pool: the clients' data.
        form: how gradients of several clients are found at once.
        workers: share the forward passes of evaluations; None: one pass after another.
        at_once: most clients that are under way at once.
    """

    def __init__(
        self, pool: ClientsData, form: BatchedForm, workers: Executor | None = None, at_once: int = AT_ONCE
    ) -> None:
        super().__init__(form.largest_batch, max(at_once, form.largest_batch))
        self.smallest_batch = form.smallest_batch
        self._pool = pool
        self._form = form
        self._evaluated = ClientsEvaluation(workers)
        self._parts: dict[nn.Module, ModelParts] = {}

    def _together(self, request: TrainRequest) -> bool:
        return request.job.rule.batched

    def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """Return the evaluation of a model: a common one's is made once for all, own ones' are made side by side."""
        if (all_clients := getcurrent().parent) is None or not (request.shared or evaluates_own(request)):
            return super().evaluate(request)
        measured: Evaluation = all_clients.switch(request)
        return measured

    def gradient(self, request: GradientRequest) -> Arrays:
        """Return a gradient, calculated together with the other clients'."""
        if (all_clients := getcurrent().parent) is None:
            return super().gradient(request)
        gradient: Arrays = all_clients.switch(request)
        return gradient

    def _answers(self, requests: Sequence[Request]) -> list[Any]:
        """Return answers to requests, group by group.

        An error belongs to all requests of its batch; one of the copy from an accelerator, to all that it is of.
        """
        groups: dict[object, list[int]] = {}
        for i, request in enumerate(requests):
            measures = isinstance(request, EvaluateRequest)
            groups.setdefault(request.group if measures else (request.group, self._size(request)), []).append(i)
        slices: list[list[int]] = []
        for members in groups.values():
            measures = isinstance(requests[members[0]], EvaluateRequest)
            most = len(members) if measures else self._form.largest_batch
            slices += [members[i : i + most] for i in range(0, len(members), most)]
        answers: dict[int, Any] = {}
        launched: list[Launched] = []
        parts: list[list[int]] = []
        for part in slices:
            parts.append(part)
            launched.append(self._batch([requests[i] for i in part]))
            if part is slices[-1] or _bytes(launched) > ON_DEVICE:
                for members, read in zip(parts, _read(launched), strict=True):
                    failed = isinstance(read, Exception)
                    answers |= zip(members, [read] * len(members) if failed else read, strict=True)
                parts, launched = [], []
        return [answers[i] for i in range(len(requests))]

    def _size(self, request: Request) -> tuple[int, int]:
        """Return steps, and examples a step, where all clients need equally many; else 0."""
        steps = size = 0
        if isinstance(request, TrainRequest):
            steps, size = request.batches.shape
        elif isinstance(request, GradientRequest):
            size = len(request.data) if request.batch is None else len(request.batch)
        stacks = isinstance(request, TrainRequest) and request.job.rule.stacks
        return steps * stacks, size * self._form.one_size

    def _batch(self, requests: Sequence[Any]) -> Launched:
        """Return the calculation of the answers to one group's requests."""
        first = requests[0]
        try:
            if isinstance(first, EvaluateRequest):
                return self._evaluate(requests) if first.shared else own_evaluations(requests)
            if len(requests) >= self._form.smallest_batch and not self._is_too_long(requests):
                return self._train(requests) if isinstance(first, TrainRequest) else self._gradients(requests)
            alone = Arithmetic.train if isinstance(first, TrainRequest) else Arithmetic.gradient
            answers = [answer(partial(alone, self), request) for request in requests]
        except Exception as error:
            answers = [error] * len(requests)
        return Launched({}, lambda _: answers)

    def _is_too_long(self, requests: Sequence[Any]) -> bool:
        """Whether gradients must be found in one step, by too many examples."""
        in_one_step = self._form.one_size or not requests[0].task.loss_is_mean
        if not in_one_step or not isinstance(requests[0], GradientRequest):
            return False
        return max(len(r.data if r.batch is None else r.batch) for r in requests) > EVALUATED

    def _evaluate(self, requests: Sequence[EvaluateRequest]) -> Launched:
        first = requests[0]
        of_clients = {request.place: request.data for request in sorted(requests, key=lambda request: request.place)}
        examples, clients = self._pool.examples(first.split, of_clients), list(of_clients)
        calculation = self._evaluated.of(first, examples, clients)

        def read(arrays: Arrays) -> list[Evaluation]:
            measured = dict(zip(clients, calculation.read(arrays), strict=True))
            return [measured[request.place] for request in requests]

        return Launched(calculation.tensors, read)

    @torch.no_grad()
    def _train(self, requests: Sequence[TrainRequest]) -> Launched:
        first, job = requests[0], requests[0].job
        examples = self._pool.examples(TRAIN_SPLIT, {r.place: r.data for r in requests})
        device = examples.device
        rows = [torch.from_numpy(np.asarray(r.batches)) + examples.span(r.place)[0] for r in requests]
        batches, places = line_up(rows, device)
        lined_up = [requests[k] for k in places]
        parts = self._model_parts(first.model)
        clients = parts.stacked([r.arrays for r in lined_up], device)
        # Of what is not drawn by key, one stream for all clients of a batch, a pure function of who they are.
        stream = Noise(first.seed, f"{' '.join(str(r.place) for r in lined_up)}/{job.purpose}", job.server_round)
        with seeded_noise(stream, device), keyed_dropout([r.noise for r in lined_up], side_by_side=True):
            if job.rule.stacks:
                batched.train_stacked(self._form, clients, examples, batches, job.training, job.rule)
            else:
                terms = type(job.rule).batched_terms([r.job.rule for r in lined_up], clients.trained)
                batched.train(self._form, clients, examples, batches, job.training, terms)
        before = [r.arrays for r in requests]

        def read(arrays: Arrays) -> list[Arrays]:
            after = arrays_of_clients(places, arrays)
            return [{n: new.get(n, a) for n, a in old.items()} for old, new in zip(before, after, strict=True)]

        return Launched(clients.trained, read)

    @torch.no_grad()
    def _gradients(self, requests: Sequence[GradientRequest]) -> Launched:
        examples = self._pool.examples(TRAIN_SPLIT, {r.place: r.data for r in requests})
        spans = [examples.span(r.place) for r in requests]
        minibatches = [
            steps_of_rows(*span, EVALUATED) if r.batch is None else _one_step(torch.from_numpy(r.batch) + span[0])
            for r, span in zip(requests, spans, strict=True)
        ]
        batches, places = line_up([rows for rows, _ in minibatches], examples.device, [w for _, w in minibatches])
        models = [requests[k].arrays for k in places]
        clients = self._model_parts(requests[0].model).stacked(models, examples.device)
        of_places = batched.gradients(self._form, clients, examples, batches)
        return Launched(of_places, partial(arrays_of_clients, places))

    def _model_parts(self, module: nn.Module) -> ModelParts:
        if module not in self._parts:
            self._parts[module] = ModelParts.of(module)
        return self._parts[module]


def _bytes(calculations: Sequence[Launched]) -> int:
    return sum(tensor.nbytes for one in calculations for tensor in one.tensors.values())


def _read(calculations: Sequence[Launched]) -> list[Any]:
    """Return each calculation's answers, or its error, by one copy to the host."""
    tensors = {(i, name): tensor for i, one in enumerate(calculations) for name, tensor in one.tensors.items()}
    try:
        arrays = on_host(tensors)
    except Exception as error:
        return [error] * len(calculations)
    parts = ({name: arrays[i, name] for name in one.tensors} for i, one in enumerate(calculations))
    return [answer(one.read, part) for one, part in zip(calculations, parts, strict=True)]


def answer(ask: Callable[[Any], Any], request: Any) -> Any:
    """Return an answer, or its error."""
    try:
        return ask(request)
    except Exception as error:
        return error


def _one_step(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.unsqueeze(0), torch.full((1, len(rows)), 1.0 / len(rows))


_OURS = ("fedappeal.core.", "client.training.", "strategies.")
"""Where rules are known to keep nothing but what a client hands them."""
A_WORKER = 4
"""Clients that train at once, by the number of workers: those that take longer than others hold up fewer."""


def may_share(request: TrainRequest) -> bool:
    """Return whether a training may run beside others.

    On a CPU, by a task's and a rule's code known to allow it.
    """
    return (
        request.data.device.type == "cpu"
        and request.job.deadline is None
        and request.task.is_plain()
        and type(request.job.rule).__module__.startswith(_OURS)
    )


class ThreadedScheduler(ClientQueue):
    """Clients' trainings in parallel threads, each as in a deployed client.

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

    def _together(self, request: TrainRequest) -> bool:
        return not self._draws and may_share(request)

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        """Return trainings' answers, one by one where they draw noise.

        Others are answered side by side.
        """
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
        return [answer(partial(Arithmetic.train, self), request) for request in requests]

    def _one(self, request: TrainRequest) -> Any:
        """Return a client's trained model, or its error."""
        free = self._models[request.model]
        model = free.get()
        try:
            return answer(train_without_seed, replace(request, model=model))
        finally:
            free.put(model)
