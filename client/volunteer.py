"""A Flower ClientApp as a volunteer: its messages are answered by a `Participant` that holds an `AppLearner`.

Under our strategies it answers as our clients do, in the app's own names. A stock strategy knows no volunteers: there
the client spends its goodwill by itself, and sits a round out by an error reply, which every strategy leaves out.
"""

import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from client import answers
from client.answers import Question
from client.app_learner import AppLearner, Attended, Interface
from client.approval import held_back
from client.learner import Learners
from client.outcome import ANSWERED, EVALUATED, JOINED, LEFT, Outcome
from client.participant import Participant
from client.roster import Participants, node_of, store_of
from client.settings import NodeSettings
from client.state.memory import RunMemory, client_identity
from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.core.registry import STRATEGIES
from fedappeal.protocol import keys
from fedappeal.protocol.keys import APP_CONFIGS, LEFT_ERROR, SAT_OUT_ERROR, app_config
from fedappeal.protocol.packing import Arrays, Layout, content_hash
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, section
from fedappeal.settings.training import LocalTrainingSettings

log = logging.getLogger("fedappeal.client")

DEFAULTS: Mapping[str, Scalar] = {
    "judge-on": "train",
    "adaptation-steps": 0,
    "goodwill": RunConfig.model_fields["goodwill"].default,
    "solo.steps": 10,
}
"""Settings of apps that say nothing: a solo step is a call of the app's ``train``."""
PREFIX = "fedappeal."
"""In front of the names under which the client remembers in the app's context."""
_RUN, _SEEN, _TOLD, _ROUND = "app-run", "seen", "told", keys.SERVER_ROUND
_HANDLED = (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE)
_OF_TRAINING = frozenset(LocalTrainingSettings.keys())
_OF_OWNER = set(NodeSettings.keys()) - {
    "data",
    "features",
    "label",
    "role",
    "partition-id",
    "num-partitions",
    "data-dir",
}


Call = Callable[[Message, Context], Message]
"""An app, or what calls it in another process."""


@dataclass(eq=False)
class AppClients:
    """The clients of an app in this process: each decides for each round whether the app trains.

    Attributes:
        app: the app.
        interface: what it tells and can do.
        evaluate_config: what its ``evaluate`` is told before the first EVALUATE has come.
        settings: of a run, by key: policy, requirement, goodwill and so on.
        node_config: what the app finds as its node's configuration; None: the node's.
        code: says which code an owner approves with a run; None: the app is the node's own.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    app: Call
    interface: Interface
    evaluate_config: Mapping[str, Any] | None = None
    settings: Mapping[str, Scalar] | None = None
    node_config: Mapping[str, Scalar] | None = None
    code: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        self._evaluate_config = ConfigRecord(dict(self.evaluate_config or {}))
        self._settings = {**DEFAULTS, **(self.settings or {})}
        RunConfig.parse(self._settings)
        self._participants = Participants(Learners(self._learner))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made of: Flower's simulation sends the app with each message."""
        return AppClients, tuple(getattr(self, field.name) for field in fields(self))

    def with_settings(self, settings: Mapping[str, Scalar]) -> "AppClients":
        """Return them with further settings, which go before these."""
        return replace(self, settings={**(self.settings or {}), **settings})

    def __call__(self, message: Message, context: Context) -> Outcome:
        """Answer a message.

        Raises:
            ConfigError: it cannot be answered; one line for the server.
        """
        kind = message.metadata.message_type.removesuffix(".default")
        node = _node_of(context.node_config)
        question = Question(message, context, _unpack)
        code = "" if self.code is None else self.code()
        if node.asks and (held := held_back(node, question, kind, code)) is not None:
            replied = held.reply(message)
            if kind != MessageType.QUERY:
                replied = Message(Error(SAT_OUT_ERROR, f"this client takes no part: {held.why}"), reply_to=message)
            return replace(held, replied=replied)
        if kind not in _HANDLED or (kind == MessageType.QUERY and not message.content.array_records):
            if self.interface.tells is not None:  # what its own functions would answer, no owner has allowed
                allowed = ", ".join(_HANDLED)
                raise ConfigError(f"message-type = '{kind}' is not allowed for an app that its owner runs: {allowed}")
            return Outcome(ANSWERED, replied=self.app(message, context))
        ours, theirs = (replace(context, state=state) for state in _two_states(context.state))
        if self.node_config is not None:
            theirs.node_config = dict(self.node_config)
        try:
            return self._answer(kind, message, ours, theirs, node)
        finally:
            context.state.clear()
            context.state.update(theirs.state)
            context.state.update({PREFIX + name: record for name, record in ours.state.items()})

    def _answer(self, kind: str, message: Message, ours: Context, theirs: Context, node: NodeSettings) -> Outcome:
        store = store_of(node, ours)
        names = _only(message, ArrayRecord), _only(message, ConfigRecord)
        config = message.content[names[1]]
        run_key = str(config.get(keys.RUN_KEY) or f"run-{message.metadata.run_id}")
        records = RunMemory(store, run_key)  # of this run alone: a state folder has many
        attended = self._for_app(kind, message, theirs, records, names)
        of_us = kind == MessageType.QUERY or keys.MANDATORY in config or keys.SPLIT in config
        translated = self._for_client(message, attended, records, of_us, run_key)
        client = self._participant(config, translated, ours, node, store, records, of_us)
        learner = client.learner
        assert isinstance(learner, AppLearner)
        if learner.data_fingerprint != run_key:  # what the app is told may be other than in the run before
            client.measured = {}
        learner.attend(attended, records, run_key)
        if kind == MessageType.EVALUATE and not of_us:
            reply = self.app(message, theirs)
            learner.note(reply, "" if self.interface.splits else f"/{content_hash(attended.model)}")
            return Outcome(EVALUATED, replied=learner.let_out(reply, client.discloses))
        question = Question(translated, ours, _unpack)
        answer = {MessageType.QUERY: answers.enrol, MessageType.TRAIN: answers.train}.get(kind, answers.evaluate)
        outcome = answer(client, question)
        reply = _stock_reply(message, outcome, learner) if not of_us else outcome.reply(message)
        if outcome.what == JOINED:
            model = reply.content.pop(keys.ARRAYS) if of_us else outcome.records[keys.ARRAYS]
            assert isinstance(model, ArrayRecord)
            name = names[0] if of_us else next(iter(reply.content.array_records))
            reply.content[name] = ArrayRecord({key: model[key] for key in attended.model})
        return replace(outcome, replied=reply)

    def _for_app(
        self, kind: str, message: Message, context: Context, store: Store, names: tuple[str, str]
    ) -> Attended:
        """Return what the app would see of a message; what it is told is remembered for questions of the client's."""
        of_kind: dict[str, ConfigRecord] = {}
        for one, default in ((MessageType.TRAIN, ConfigRecord()), (MessageType.EVALUATE, self._evaluate_config)):
            if kind == one:
                told = message.content[names[1]]
            elif (name := app_config(one)) in message.content:
                told = message.content[name]
            else:
                kept = store.read(name)
                told = default if kept is None else ConfigRecord.inflate(b64decode(str(kept.values[_TOLD])))
                of_kind[one] = ConfigRecord({_ROUND: 1, **told})
                continue
            assert isinstance(told, ConfigRecord)
            of_kind[one] = ConfigRecord({_ROUND: 1, **told})  # the roll call's tells no round, which apps may read
            store.write(app_config(one), StoredRecord({_TOLD: b64encode(told.deflate()).decode()}))
        return Attended(message, context, names, of_kind[MessageType.TRAIN], of_kind[MessageType.EVALUATE])

    def _participant(
        self,
        config: Mapping[str, Any],
        message: Message,
        context: Context,
        node: NodeSettings,
        store: Store,
        records: Store,
        of_us: bool,
    ) -> Participant:
        """Return the client of a context, in a run of the strategy that its messages name."""
        run = dict(self._settings)
        if strategy := str(config.get(keys.STRATEGY, "")):
            sent = section(config, strategy)
            settings_keys = STRATEGIES.load(strategy, node.allowed).Settings.keys()
            kept = records.read(_RUN)
            before = kept.values if kept is not None and kept.values["strategy"] == strategy else {}
            named = {
                **before,
                "strategy": strategy,
                **{f"{strategy}.{key}": sent[key] for key in sent if key in settings_keys},
            }
            records.write(_RUN, StoredRecord(named))
            run |= named
        elif of_us and (kept := records.read(_RUN)) is not None:
            run |= kept.values
        place = max(0, node.partition_id)
        unseen = int(run.get("unseen-clients", 0))
        total = max(place + 1, int(context.node_config.get("num-partitions", 1)), int(run.get("clients", 1)) + unseen)
        run["clients"] = total - unseen
        owner = {key: value for key, value in context.node_config.items() if key in _OF_OWNER}
        owner |= {"client-id": client_identity(node, store), "partition-id": place}
        derived = Context(context.run_id, context.node_id, owner, context.state, run)
        return self._participants.of(derived, message)

    def _learner(self, config: RunConfig, node: NodeSettings, client_id: str) -> AppLearner:
        return AppLearner(self.app, self.interface, config)

    def _for_client(self, message: Message, attended: Attended, store: Store, of_us: bool, run_key: str) -> Message:
        """Return a message as our clients are sent it."""
        told = message.content[attended.record[1]]
        assert isinstance(told, ConfigRecord)
        config = {key: value for key, value in told.items() if key not in _OF_TRAINING}
        config[keys.RUN_KEY] = run_key
        if not of_us:
            seen = store.read(_SEEN)
            counted = (int(seen.values[_ROUND]) if seen else 0) + 1
            if seen is None:
                log.info("this run's strategy asks for no roll call: the model of its first message stands for w_0")
            config |= {_ROUND: counted, keys.MANDATORY: 1, **{k: told[k] for k in (_ROUND,) if k in told}}
            store.write(_SEEN, StoredRecord({_ROUND: counted}))
        content = RecordDict(dict(message.content))
        del content[attended.record[0]], content[attended.record[1]]
        content[keys.ARRAYS], content[keys.CONFIG] = attended.model, ConfigRecord(config)
        translated = Message(content, reply_to=message)
        translated.metadata.message_type = message.metadata.message_type
        return translated


def _node_of(values: Mapping[str, Scalar]) -> NodeSettings:
    """Return the owner's settings, without what names data: the app knows them."""
    place, owner = values.get("partition-id", -1), {key: value for key, value in values.items() if key in _OF_OWNER}
    return node_of({**owner, **({"partition-id": place} if isinstance(place, int) and place >= 0 else {})})


class VolunteerApp(ClientApp):
    """A ClientApp whose clients are these."""

    def __init__(self, clients: AppClients) -> None:
        super().__init__()
        self._clients = clients

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the clients alone."""
        return VolunteerApp, (self._clients,)

    @property
    def wrapped(self) -> Call:
        """The app in it."""
        return self._clients.app

    def with_settings(self, settings: Mapping[str, Scalar]) -> "VolunteerApp":
        """Return it with further settings, which go before its author's."""
        return VolunteerApp(self._clients.with_settings(settings))

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the reply to a message; errors as `AppClients`."""
        return self._clients(message, context).reply(message)


def own_state(state: RecordDict) -> RecordDict:
    """Return what a client remembers in a context: beside an app's records, or alone."""
    return _two_states(state)[0] or state


def _two_states(state: RecordDict) -> tuple[RecordDict, RecordDict]:
    """Return the parts of a context's state that are the client's and the app's."""
    ours = {name.removeprefix(PREFIX): record for name, record in state.items() if name.startswith(PREFIX)}
    theirs = {name: record for name, record in state.items() if not name.startswith(PREFIX)}
    return RecordDict(ours), RecordDict(theirs)


def _only(message: Message, kind: type[ArrayRecord] | type[ConfigRecord]) -> str:
    """Return the name of a message's model, or of its configuration.

    Raises:
        ConfigError: it has none, or several under other names than ours.
    """
    usual = keys.ARRAYS if kind is ArrayRecord else keys.CONFIG
    found = [name for name, one in message.content.items() if isinstance(one, kind) and name not in APP_CONFIGS]
    if usual in found or len(found) == 1:
        return usual if usual in found else found[0]
    raise ConfigError(f"the message has {len(found)} {kind.__name__}s, none of them '{usual}': one is allowed")


def _unpack(record: ArrayRecord, layout: Layout) -> tuple[Arrays, str]:
    return layout.unpack(record), content_hash(record)


def _stock_reply(message: Message, outcome: Outcome, learner: AppLearner) -> Message:
    """Return the reply to a strategy that knows no volunteers: the app's own, or an error."""
    if outcome.what == JOINED:
        assert learner.joined is not None
        return learner.let_out(Message(RecordDict(dict(learner.joined.content)), reply_to=message))
    code = LEFT_ERROR if outcome.what == LEFT else SAT_OUT_ERROR
    return Message(Error(code, outcome.why or f"volunteer: {outcome.what}"), reply_to=message)
