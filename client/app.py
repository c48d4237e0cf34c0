"""The ClientApp: which client a message is for, and its reply.

The same code runs in the long-lived process, under a stock ``flower-supernode`` and in both simulators.
"""

from collections.abc import Callable

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from client import answers
from client.answers import Question, examination_of, values_of
from client.approval import held_back
from client.data.refused import OwnDataRefused
from client.outcome import Outcome
from client.roster import Participants, node_of
from client.settings import ANY
from client.training.task_learner import TaskLearners
from fedappeal.protocol.packing import content_hash
from fedappeal.settings.config import ConfigError
from fedappeal.system.last_result import LastResult

Answer = Callable[[Message, Context], Outcome]
"""Answers one client's message."""


class Clients:
    """Answers the messages of this process's clients."""

    def __init__(self, participants: Participants) -> None:
        self._participants = participants
        # Known again by what is in them, too: a strategy may change a record in place between two rounds.
        unpacked = LastResult(lambda record, layout, *arrays: (layout.unpack(record), content_hash(record)))
        values = LastResult(lambda record, *entries: values_of(record))
        self._unpack = lambda record, layout: unpacked(record, layout, *record.values())
        self._read_config = lambda record: values(record, *record.keys(), *record.values())
        self._examine = LastResult(examination_of)

    def __reduce__(self) -> str:
        """Pickle as the process's own: Flower's simulation sends the app with each message.

        Raises:
            TypeError: participants that a program made stay in its process.
        """
        if self is not clients:
            raise TypeError("a ClientApp with participants of its own cannot be sent to another process")
        return "clients"

    def __call__(self, message: Message, context: Context) -> Outcome:
        """Answer a message.

        Raises:
            ConfigError: it cannot be answered; one line for the server.
        """
        question = Question(message, context, self._unpack, self._read_config, self._examine)
        kind = message.metadata.message_type.removesuffix(".default")
        asks = context.node_config.get("approve", ANY) != ANY
        if asks and (outcome := held_back(node_of(context.node_config), question, kind)) is not None:
            if kind != MessageType.QUERY:
                raise ConfigError(f"this client takes no part in this run: {outcome.why}")
            return outcome
        if kind == MessageType.TRAIN:
            return answers.train(self._participants.of(context, message), question)
        if kind == MessageType.EVALUATE:
            return answers.evaluate(self._participants.of(context, message), question)
        if kind != MessageType.QUERY:
            raise ConfigError(f"message type '{kind[:40]}' is not known to this client: query, train, evaluate")
        answers.check_version(question.config)
        try:
            participant = self._participants.of(context, message)
        except OwnDataRefused as error:
            return answers.own_data_refusal(error, node_of(context.node_config), question)
        try:
            return answers.enrol(participant, question)
        except Exception:
            self._participants.drop(participant)
            raise


def app_of(answer: Answer) -> ClientApp:
    """Return a ClientApp that replies what its clients answer."""
    app, reply = ClientApp(), replying(answer)
    for register in (app.query, app.train, app.evaluate):
        register()(reply)
    return app


def replying(answer: Answer) -> Callable[[Message, Context], Message]:
    """Return a function that replies what its clients answer, to messages of any kind."""
    return lambda message, context: answer(message, context).reply(message)


learners = TaskLearners()
clients = Clients(Participants(learners))
"""The clients of a process that is a client, under a SuperLink or in Flower's simulation."""
app = app_of(clients)
