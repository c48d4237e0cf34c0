"""A Flower `Grid` in this process: a message to a virtual client is a function call."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1
FIRST_NODE = 2
"""Node id of client 0; the others follow."""
RUN = 1


Together = Callable[[Sequence[Callable[[], Message]]], list[Message]]
"""Runs several clients, and returns their replies in order."""


class InProcessGrid(Grid):
    """Virtual clients behind one ClientApp, one context each.

    A client's context is made when it is first sent a message, and holds its durable record and nothing else. A
    reply is made when it is pulled, so that the round loop never holds more replies than it asks for.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        context: Callable[[int], Context],
        together: Together | None = None,
    ) -> None:
        """Take the app, the number of clients, and what runs them.

        Args:
            app: the ClientApp.
            clients: their number.
            context: makes the context of client 0..clients-1.
            together: runs several clients side by side; None: one after another.
        """
        # Flower takes a message's run and source from the process it is made in.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER_NODE, RUN
        self._app = app
        self._nodes = range(FIRST_NODE, FIRST_NODE + clients)
        self._make_context = context
        self._contexts: dict[int, Context] = {}
        self._together = together
        self._waiting: dict[str, Message] = {}
        self._pushed = 0

    def set_run(self, run: Run) -> None:
        """Not used: there is one run."""

    @property
    def run(self) -> Run:
        """Not available: there is no SuperLink that would know of a run."""
        raise NotImplementedError("an in-process federation has no Flower run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message; Flower's older name for its constructor."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes: virtual clients are always online."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages; return their ids, empty for a node that is not there."""
        ids = []
        for message in messages:
            if message.metadata.dst_node_id not in self._nodes:
                ids.append("")
                continue
            self._pushed += 1
            message_id = str(self._pushed)
            message.metadata.__dict__["_message_id"] = message_id
            self._waiting[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Have the clients answer these messages, and return their replies."""
        waiting = [self._waiting.pop(i) for i in message_ids if i in self._waiting]
        if self._together is None:
            return [self._answer(message) for message in waiting]
        return self._together([partial(self._answer, message) for message in waiting])

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push and pull at once."""
        return self.pull_messages(self.push_messages(messages))

    def context(self, node: int) -> Context:
        """Return a node's context, made on first use."""
        if node not in self._contexts:
            self._contexts[node] = self._make_context(node - FIRST_NODE)
        return self._contexts[node]

    def _answer(self, message: Message) -> Message:
        try:
            return self._app(message, self.context(message.metadata.dst_node_id))
        except Exception as error:
            # As a deployed client answers: the round goes on, with the reason counted.
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
