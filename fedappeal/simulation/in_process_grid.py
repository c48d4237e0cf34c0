"""Virtual clients: their contexts, and a Flower `Grid` in this process whose messages are function calls."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from client.app import Clients, replying
from client.participant import Participant
from client.roster import Participants
from client.settings import NodeSettings
from client.training.task_learner import TaskLearners
from client.volunteer import Call
from fedappeal.core.local_rule import Store
from fedappeal.core.places import place
from fedappeal.flower.grid.inbox import Run
from fedappeal.flower.messages import be_sender, error_reply, set_message_id
from fedappeal.settings.config import Scalar
from fedappeal.simulation.attackers import Liars, kind_of
from fedappeal.simulation.forms.choice import form_of
from fedappeal.simulation.forms.scheduler import BatchScheduler, ClientQueue, ThreadedScheduler, clients_at_once
from fedappeal.simulation.own_models import NotKept
from fedappeal.simulation.pool import ClientsData
from fedappeal.simulation.process_wide import frozen_objects, single_threaded_workers
from server.build import Plugins

SERVER_NODE = 1
FIRST_NODE = 2
"""Node id of client 0; the others follow."""
RUN = 1


class VirtualClients(Grid):
    """A grid of clients outside any SuperLink, one context each.

    A client's context is made when it is first sent a message, and holds its durable record and nothing else.
    """

    def __init__(self, clients: int, context: Callable[[int], Context]) -> None:
        """Begin without contexts.

        Args:
            clients: their number.
            context: makes the context of client 0..clients-1.
        """
        # Flower takes a message's run and source from the process it is made in.
        be_sender(RUN, SERVER_NODE, RUN)
        self._nodes = range(FIRST_NODE, FIRST_NODE + clients)
        self._make_context = context
        self.contexts: dict[int, Context] = {}
        """The contexts that there are, by node."""
        self._pushed = 0

    def set_run(self, run: Run) -> None:
        """Not used: there is one run."""

    @property
    def run(self) -> Run:
        """Not available: only a SuperLink knows of runs.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("an in-process federation has no Flower run: its settings are in the run's folder")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message; Flower's older name for its constructor."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes, which are always online."""
        return list(self._nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, and pull until all have answered."""
        left, replies = [i for i in self.push_messages(messages) if i], []
        while left:
            came = list(self.pull_messages(left))
            answered = {message.metadata.reply_to_message_id for message in came}
            left = [i for i in left if i not in answered]
            replies += came
        return replies

    def context(self, node: int) -> Context:
        """Return a node's context, made on first use."""
        if node not in self.contexts:
            self.contexts[node] = self._make_context(node - FIRST_NODE)
        return self.contexts[node]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Accept messages; return their ids, empty for unknown nodes."""
        ids = []
        for message in messages:
            message_id = ""
            if message.metadata.dst_node_id in self._nodes:
                self._pushed += 1
                set_message_id(message, message_id := str(self._pushed))
                self.take(message)
            ids.append(message_id)
        return ids

    @abstractmethod
    def take(self, message: Message) -> None:
        """Accept a message that has its id."""


class InProcessGrid(VirtualClients):
    """Virtual clients behind one ClientApp, or what a ClientApp would call.

    A reply is made when it is pulled: no more replies are held than the round loop asks for, and the few of clients
    that were trained in the same batch.
    """

    def __init__(
        self, app: Call, clients: int, context: Callable[[int], Context], scheduler: ClientQueue | None = None
    ) -> None:
        """Begin without contexts and messages.

        Args:
            app: makes a client's reply.
            clients: their number.
            context: makes the context of client 0..clients-1.
            scheduler: runs clients at once; None: one after another.
        """
        super().__init__(clients, context)
        self._app = app
        self._scheduler = scheduler
        self._waiting: dict[str, Message] = {}

    def take(self, message: Message) -> None:
        """Accept a message that has its id."""
        message_id = message.metadata.message_id
        if self._scheduler is None:
            self._waiting[message_id] = message
        else:
            self._scheduler.start(message_id, partial(self._answer, message))

    def pull_messages(self, message_ids: Iterable[str], train: bool = True) -> Iterable[Message]:
        """Return the replies that clients give now.

        With a scheduler, some may come at a later call; ``train``: whether clients train for theirs.
        """
        if self._scheduler is not None:
            return list(self._scheduler.results(list(message_ids), train).values())
        return [self._answer(self._waiting.pop(i)) for i in message_ids if train and i in self._waiting]

    def _answer(self, message: Message) -> Message:
        try:
            return self._app(message, self.context(message.metadata.dst_node_id))
        except NotKept as error:  # the numbers would be others without the client
            raise error.__cause__ or error from None
        except (Exception, SystemExit) as error:
            # As a deployed client answers: the round continues, with the reason counted.
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            return error_reply(f"{reason}{place(error)}", message)


@dataclass(frozen=True)
class Contexts:
    """A maker of virtual clients' contexts.

    Attributes:
        plugins: the run's settings and plug-ins.
        data_dir: folder with the data sets.
        device: where data and models are.
        store: makes a client's memory.
    """

    plugins: Plugins
    data_dir: str
    device: str
    store: Callable[[NodeSettings, Context], Store]

    @property
    def clients(self) -> int:
        """The number of clients, unseen ones among them."""
        return self.plugins.config.clients + self.plugins.config.unseen_clients

    @cached_property
    def _node(self) -> dict[str, Scalar]:
        return {
            "num-partitions": self.clients,
            "data-dir": self.data_dir,
            "device": self.device,
            "set": self.plugins.owner_files(),
        }

    @cached_property
    def _run_config(self) -> dict[str, Scalar]:
        return self.plugins.config.as_config()

    def of(self, k: int) -> Context:
        """Return the context of client k, without a record."""
        return Context(RUN, FIRST_NODE + k, {"partition-id": k, **self._node}, RecordDict(), self._run_config)


@contextmanager
def clients_here(
    contexts: Contexts,
    pool: ClientsData,
    learners: TaskLearners,
    mode: str,
    threads: int,
    kind: Callable[..., Participant] = Participant,
) -> Iterator[tuple[InProcessGrid, Participants]]:
    """Yield a grid of virtual clients in this process.

    Args:
        contexts: makes theirs.
        pool: their data, of the run's task.
        learners: what they share.
        mode: ``layers``, ``vmap`` or ``sequential``.
        threads: PyTorch threads.
        kind: makes a participant.

    Yields:
        The grid that reaches them, and their participants.
    """
    model = learners.scratch_model(pool.task, contexts.plugins.config.seed, pool.device)
    form = form_of(mode, pool.task, model)
    with single_threaded_workers(threads) as workers, frozen_objects():
        scheduler: ClientQueue | None = None
        if form:
            scheduler = BatchScheduler(pool, form, workers, clients_at_once(model))
        elif workers:
            scheduler = ThreadedScheduler(workers, threads)
        config = contexts.plugins.config
        learners.simulate(scheduler, pool.client)
        participants = Participants(learners, kind_of(config, kind), contexts.store)
        answer = Clients(participants)
        app = replying(Liars(answer, participants, config) if config.byzantine_share else answer)
        yield InProcessGrid(app, contexts.clients, contexts.of, scheduler), participants
