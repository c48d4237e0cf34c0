"""One real client that a test hands messages to: no server, no network."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from client.app import Answer, Clients, app_of
from client.learner import Learners
from client.outcome import Outcome
from client.participant import Participant
from client.roster import Participants
from client.settings import NodeSettings
from client.training.models import arrays_of
from client.training.task_learner import TaskLearners
from fedappeal.core.algorithm import of_run, rule_name
from fedappeal.core.local_rule import Store
from fedappeal.core.registry import STRATEGIES
from fedappeal.flower.messages import be_sender
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.tasks import load_task
from fedappeal.tasks.share import parts_of, share_of
from strategies.rounds.strategy import rounds_of

NODE = 3
RUN_KEY = "k"


def run_config(**settings: Scalar) -> RunConfig:
    """Return run settings, where none are given the papers'; a double underscore stands for a plug-in's dot."""
    return RunConfig.parse_recorded(
        {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    )


def changed(config: RunConfig, **settings: Scalar) -> RunConfig:
    """Return run settings with some replaced; keys as in `run_config`."""
    more = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return RunConfig.parse({**config.as_config(), **more})


def participant_of(
    config: RunConfig, node: NodeSettings, store: Store, learners: Learners | None = None
) -> Participant:
    """Return one client that no process keeps."""
    return Participants(learners or TaskLearners()).new_participant(config, node, store)


class Node:
    """One client, with participants of its own unless some are given."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None = None,
        participants: Participants | None = None,
        **node: Scalar,
    ) -> None:
        own: dict[str, Scalar] = {"partition-id": 1, "device": "cpu", "allow": ""}  # as a long-lived client
        own |= {} if folder is None else {"state-dir": str(folder)}
        own |= {key.replace("_", "-"): value for key, value in node.items()}
        self.participants = participants or Participants(TaskLearners())
        self.answer: Answer = Clients(self.participants)
        self.config = config
        self.context = Context(7, NODE, dict(own), RecordDict(), config.as_config())

    @cached_property
    def initial(self) -> Arrays:
        """What travels of w_0 of the run's task, by name."""
        task = load_task(self.config.task_settings())
        model = task.initial_model(self.config.seed)
        return arrays_of(model, parts_of(model, share_of(task)).shared)

    @cached_property
    def layout(self) -> Layout:
        """Its layout."""
        return Layout.of(self.initial)

    @cached_property
    def told(self) -> dict[str, Scalar]:
        """What TRAIN and EVALUATE say of the run's strategy, and TRAIN of its local rule."""
        strategy = of_run(STRATEGIES.load(self.config.strategy), self.config)
        named = self.config.local_rule
        return {**rounds_of(strategy).told(), keys.LOCAL_RULE: rule_name(strategy) if named == "auto" else named}

    def __call__(self, kind: str, *arguments: Any, **values: Any) -> RecordDict:
        """Return the content of the reply to a message; arguments as in `message`."""
        return self.reply(kind, *arguments, **values).content

    def reply(self, kind: str, *arguments: Any, **values: Any) -> Message:
        """Return the whole reply; arguments as in `message`."""
        return app_of(self.answer)(self.message(kind, *arguments, **values), self.context)

    def outcome(self, kind: str, *arguments: Any, **values: Any) -> Outcome:
        """Return what the client did; arguments as in `message`."""
        return self.answer(self.message(kind, *arguments, **values), self.context)

    def message(
        self,
        kind: str,
        arrays: ArrayRecord | Arrays | None = None,
        told: Mapping[str, Scalar | None] | None = None,
        records: Mapping[str, ArrayRecord] | None = None,
        **values: Scalar | None,
    ) -> Message:
        """Return a message.

        Args:
            kind: ``query``, ``train`` or ``evaluate``.
            arrays: the model that is sent; None: w_0.
            told: what the message's config says besides, or instead; None takes a key away.
            records: further records.
            values: the same as ``told``, with underscores.
        """
        config: dict[str, Scalar | None] = {keys.RUN_KEY: RUN_KEY, keys.LAYOUT: self.layout.hash}
        config |= {} if kind == "query" else self.told
        config |= {keys.SERVER_ROUND: 1} if kind == "train" else {}
        config |= {**(told or {}), **{key.replace("_", "-"): value for key, value in values.items()}}
        sent = ConfigRecord({key: value for key, value in config.items() if value is not None})
        model = self.initial if arrays is None else arrays
        record = model if isinstance(model, ArrayRecord) else self.layout.pack(model)
        be_sender(run_id=7, node_id=1, task_id=9)  # else no message can be made outside of a Flower process
        content = RecordDict({keys.ARRAYS: record, keys.CONFIG: sent, **(records or {})})
        return Message(content, NODE, kind)

    def metrics(self, kind: str = "train", *arguments: object, **values: Scalar | None) -> dict[str, object]:
        """Return the metrics of an answer; arguments as in `__call__`."""
        return metrics_of(self(kind, *arguments, **values))  # type: ignore[arg-type]

    def restarted(self) -> "Node":
        """Return the same client in a new process, under a new node id: only what is on the disk is left."""
        other = Node(self.config)
        other.context = Context(7, 99, self.context.node_config, RecordDict(), self.context.run_config)
        return other


def metrics_of(content: RecordDict) -> dict[str, object]:
    """Return the metrics of a reply."""
    record = content[keys.METRICS]
    assert isinstance(record, MetricRecord)
    return dict(record)
