"""A run's clients on workers: which worker has which clients, the Flower `Grid` that reaches them, Ray's actors."""

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message

from fedappeal.protocol import keys
from fedappeal.protocol.packing import ModelHandle, ModelPlace, Summand, Sums, model_of, record_of_handle, view
from fedappeal.record.folder import RunFolder
from fedappeal.simulation.in_process_grid import FIRST_NODE, Contexts, VirtualClients
from fedappeal.simulation.options import Simulation
from fedappeal.simulation.workers import worker
from fedappeal.simulation.workers.cluster import RayWorker, WorkerLost, check_workers, ray_cluster, room_for
from fedappeal.simulation.workers.worker import Changes, Key, WorkerAnswer
from server.build import Plugins

log = logging.getLogger("fedappeal")


class Remote(Protocol):
    """A worker in another process."""

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Begin a call; return a function that waits for its result.

        Raises:
            WorkerLost: it does not answer any more; raised by what is returned.
        """

    def end(self) -> None:
        """End the worker, if it still runs."""


@dataclass
class Crew:
    """Workers by number, and their clients.

    Attributes:
        workers: those that live.
        clients: number of clients.
        on_loss: told of each worker that is lost, of its clients, and why.
        of_client: the worker of each client.
    """

    workers: dict[int, Remote]
    clients: int
    on_loss: Callable[[int, int, str], None]
    of_client: dict[int, int] = field(default_factory=dict)

    def start(self) -> None:
        """Place the clients on the workers in turn, and load their data.

        Raises:
            RuntimeError: all workers are lost.
        """
        self._place(range(self.clients))

    def ask(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Return the results of calls of workers, without those of lost ones.

        They work side by side.

        A lost worker's clients are with the others by then.

        Args:
            method: of the worker.
            arguments: by worker.

        Raises:
            RuntimeError: all workers are lost.
        """
        results, lost = self._results(method, arguments)
        self._lose(lost)
        return results

    def _results(self, method: str, arguments: Mapping[int, Sequence[Any]]) -> tuple[dict[int, Any], dict[int, str]]:
        waits = {number: self.workers[number].begin(method, *values) for number, values in arguments.items()}
        results: dict[int, Any] = {}
        lost: dict[int, str] = {}
        for number, wait in waits.items():
            try:
                results[number] = wait()
            except WorkerLost as error:
                lost[number] = str(error)
        return results, lost

    def _place(self, clients: Sequence[int]) -> None:
        """Place clients on the living workers."""
        numbers = sorted(self.workers)
        placed = {number: list(clients[i :: len(numbers)]) for i, number in enumerate(numbers)}
        for number, share in placed.items():
            self.of_client |= dict.fromkeys(share, number)
        _, lost = self._results("place", {number: [share] for number, share in placed.items() if share})
        self._lose(lost)

    def _lose(self, lost: Mapping[int, str]) -> None:
        """Place the clients of lost workers anew.

        ``lost``: why, by worker.
        """
        if not lost:
            return
        clients = [k for k, number in self.of_client.items() if number in lost]
        for number, reason in lost.items():
            self.workers.pop(number).end()
            count = sum(holder == number for holder in self.of_client.values())
            log.warning("worker %d is lost (%s): its %d clients go to the others", number, reason, count)
            self.on_loss(number, count, reason)
        if not self.workers:
            reason = next(iter(lost.values()))
            raise RuntimeError(f"all workers are lost ({reason}); finished rounds are kept: fedappeal resume FOLDER")
        self._place(clients)

    def end(self) -> None:
        """End all workers."""
        while self.workers:
            self.workers.popitem()[1].end()


class WorkersGrid(VirtualClients):
    """A grid of virtual clients on workers, with their latest states here.

    As their latest replies left them.

    A worker that is lost takes no state with it. Its clients are given to others, and the messages of the round that
    it had not answered, or whose models it had, are answered again: a client that is asked for a round again starts
    from what it remembered before that round.
    """

    def __init__(self, crew: Crew, context: Callable[[int], Context]) -> None:
        """Begin without contexts and messages.

        Args:
            crew: the workers, with their clients.
            context: makes the context of client 0..clients-1.
        """
        super().__init__(crew.clients, context)
        self._crew = crew
        self._open: dict[str, Message] = {}
        self._sent: dict[str, int] = {}
        self._states: dict[int, tuple[int, dict[str, Any]]] = {}
        self._models: dict[Key, tuple[int, Message]] = {}
        self._forgotten: dict[int, list[Key]] = {}

    def _take(self, message_id: str, message: Message) -> None:
        self._open[message_id] = message

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the workers' replies to these messages, in the messages' order.

        Workers answer side by side.
        """
        wanted = [message_id for message_id in message_ids if message_id in self._open]
        answers = self._answers(wanted)
        return [self._reply(self._open.pop(message_id), answers[message_id]) for message_id in wanted]

    # -- models that stay with the workers -----------------------------------------------------------

    def fold(self, parts: Sequence[Summand]) -> list[Sums]:
        """Return the workers' partial sums of models (`fedappeal.protocol.packing.Holder`)."""
        sums: list[Sums] = []
        left = list(parts)
        while left:
            at = [self._models[part.model.kept.key][0] for part in left]
            if lost := set(at) - self._crew.workers.keys():
                self._train_again([p.model.kept.key for p, number in zip(left, at, strict=True) if number in lost])
                continue
            weights: dict[int, list[tuple[Key, float]]] = {}
            for part, number in zip(left, at, strict=True):
                weights.setdefault(number, []).append((part.model.kept.key, part.weight))
            folded = self._crew.ask("fold", {number: [weights[number]] for number in sorted(weights)})
            sums += [folded[number] for number in sorted(folded)]
            left = [part for part, number in zip(left, at, strict=True) if number not in folded]
        return sums + self._sent_models(parts)

    def _sent_models(self, parts: Sequence[Summand]) -> list[Sums]:
        """Return the sent models times their parts' weights.

        A worker's sum counts from them.
        """
        weights: dict[int, tuple[ArrayRecord, float]] = {}
        for part in parts:
            if (key := part.model.kept.key)[1] == keys.ARRAYS:
                sent = model_of(self._models[key][1].content)
                weights[id(sent)] = sent, weights.get(id(sent), (sent, 0.0))[1] + part.weight
        return [
            {name: np.multiply(view(array).reshape(-1), weight, dtype=np.float64) for name, array in sent.items()}
            for sent, weight in weights.values()
        ]

    def _train_again(self, lost: Sequence[Key]) -> None:
        """Train lost models again, on their clients' present workers."""
        again = {name: self._models[name, record][1] for name, record in lost}
        self._open |= again
        answers = self._answers(list(again))
        for name, message in again.items():
            del self._open[name]
            if not answers[name].kept:
                raise RuntimeError(
                    f"client {message.metadata.dst_node_id - FIRST_NODE} of a lost worker answered otherwise when it "
                    "was asked again; all finished rounds are kept: fedappeal resume FOLDER"
                )

    def _forget(self, key: Key) -> None:
        number, _ = self._models.pop(key)
        self._forgotten.setdefault(number, []).append(key)

    # -- messages and answers ------------------------------------------------------------------------

    def _answers(self, wanted: Sequence[str]) -> dict[str, WorkerAnswer]:
        """Return the answers to open messages, each from a living worker."""
        answers: dict[str, WorkerAnswer] = {}
        while left := [message_id for message_id in wanted if message_id not in answers]:
            by_worker: dict[int, list[str]] = {}
            for message_id in left:
                by_worker.setdefault(self._worker_of(self._open[message_id]), []).append(message_id)
            arguments = {number: self._arguments(number, by_worker[number]) for number in sorted(by_worker)}
            for number, worker_answers in self._crew.ask("answer", arguments).items():
                for answer in worker_answers:
                    self._take_up(number, answer)
                    answers[answer.message] = answer
        return answers

    def _worker_of(self, message: Message) -> int:
        return self._crew.of_client[message.metadata.dst_node_id - FIRST_NODE]

    def _arguments(self, number: int, wanted: Sequence[str]) -> list[Any]:
        """Return a worker's call: new messages, wanted ones, unknown states, useless models."""
        new = [
            (name, message)
            for name, message in self._open.items()
            if self._worker_of(message) == number != self._sent.get(name)
        ]
        self._sent |= {name: number for name, _ in new}
        states: dict[int, Changes] = {}
        for _, message in new:
            node = message.metadata.dst_node_id
            state, (holder, before) = dict(self.context(node).state), self._states.get(node, (number, {}))
            if changed := worker.changes_between(before if holder == number else {}, state):
                states[node] = changed
            self._states[node] = number, state
        return [new, list(wanted), states, self._forgotten.pop(number, [])]

    def _take_up(self, number: int, answer: WorkerAnswer) -> None:
        """Record a client's changes of state, and its models' places."""
        message = self._open[answer.message]
        del self._sent[answer.message]
        node = message.metadata.dst_node_id
        state = self.context(node).state
        worker.apply_changes(state, answer.changes)
        self._states[node] = number, dict(state)
        self._models |= {(answer.message, name): (number, message) for name in answer.kept}

    def _reply(self, message: Message, answer: WorkerAnswer) -> Message:
        if answer.content is None:
            return Message(Error(*answer.error), reply_to=message)
        for name, model in answer.kept.items():
            place = ModelPlace((answer.message, name))
            weakref.finalize(place, self._forget, place.key).atexit = False
            answer.content[name] = record_of_handle(ModelHandle(self, place, *model))
        return Message(answer.content, reply_to=message)


LOST_WORKER = "worker-lost"
"""Event of a run's folder."""


@contextmanager
def clients_on_workers(contexts: Contexts, simulation: Simulation, folder: RunFolder) -> Iterator[WorkersGrid]:
    """Yield a grid of virtual clients on Ray actors.

    Args:
        contexts: makes theirs.
        simulation: how, in a mode that was chosen: ``layers``, ``vmap`` or ``sequential``; without threads, a worker
            has as many as CPUs.
        folder: the run's, which is told of lost workers.

    Raises:
        ConfigError: Ray cannot be used, or has less than is asked for; what a worker finds wrong with the settings.
    """
    plugins, options = contexts.plugins, simulation.ray_options
    check_workers(simulation.workers, plugins.config)
    path = () if options.address else tuple(sys.path)
    threads = simulation.threads or max(1, int(options.cpus))
    job = worker.WorkerJob(contexts, simulation.mode, threads, sums_suffice(plugins), path)
    with ExitStack() as stack:
        ray = stack.enter_context(ray_cluster(options, simulation.workers))
        number = min(simulation.workers or sum(bool(node["Alive"]) for node in ray.nodes()), contexts.clients)
        room = stack.enter_context(room_for(ray, number, options))
        actor = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_restarts=0)(worker.EngineWorker)
        made: dict[int, Remote] = {
            k: RayWorker(ray, actor.options(scheduling_strategy=place).remote(job)) for k, place in enumerate(room)
        }

        def lost(number: int, clients: int, reason: str) -> None:
            folder.event(LOST_WORKER, worker=number, clients=clients, reason=reason)

        crew = Crew(made, contexts.clients, lost)
        try:
            crew.start()
            yield WorkersGrid(crew, contexts.of)
        finally:
            crew.end()


def sums_suffice(plugins: Plugins) -> bool:
    """Return whether models may stay on workers.

    No strategy, median or bound needs single ones.
    """
    config = plugins.config
    return plugins.strategy.only_sums and (config.aggregation, config.influence) == ("mean", "off")
