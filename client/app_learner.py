"""A Flower ClientApp as a learner: measured by the app's ``evaluate``, trained by its ``train``."""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from client.learner import GRADIENT, HALVES, PATH, SPLITS, Job, Learner, NotReady, Sent
from client.limits.disclosure import Disclosure
from fedappeal.core.local_rule import LocalRule, Store, StoredRecord
from fedappeal.core.requirement import Evaluation
from fedappeal.flower.messages import seconds_left
from fedappeal.protocol import keys
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.protocol.packing import Arrays, Layout, array_record, content_hash, view
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks.examples import FEWEST_HALVED

WARM_UP, JOINED = "warm-up", "batches"
"""Purposes of a `Job`: training alone for the requirement, and for a round that was joined."""
_PROGRESS, _LATEST, _SIZE = "solo-progress", "latest-measurement", "examples"
_PULL = "proximal-mu"
"""How strongly FedProx's clients stay near the global model, of which training alone knows none."""
_LOSS, _ACCURACY = re.compile(r"loss\Z", re.IGNORECASE), re.compile(r"(acc|accuracy)\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Interface:
    """The names of an app's numbers, and what it can do besides TRAIN and EVALUATE.

    Attributes:
        loss: name of the loss by which a client judges; empty: the one that ends in ``loss``.
        metric: of the metric that is shown beside it; empty: the one that ends in ``acc`` or ``accuracy``.
        higher_is_better: which way that metric is better.
        examples: of the number of examples.
        splits: its ``evaluate`` measures the split that ``split`` in its configuration names.
        halves: and the halves of its held-out data by their names.
        rules: local rules that its ``train`` follows where its configuration has their settings (``proximal-mu``).
        gradient: ``query``: it has ``@app.query("gradient")``, which returns the gradient in place of the model; else
            the name in ``train``'s configuration of the learning rate of the one plain step that ``train`` takes;
            empty: neither.
        tells: names of further numbers that its answers may tell; None: all.
    """

    loss: str = ""
    metric: str = ""
    higher_is_better: bool = True
    examples: str = keys.NUM_EXAMPLES
    splits: bool = False
    halves: bool = False
    rules: tuple[str, ...] = ()
    gradient: str = ""
    tells: frozenset[str] | None = None

    @property
    def can(self) -> frozenset[str]:
        """What a learner offers by it."""
        by_splits = {SPLITS, PATH, HALVES} if self.halves else {SPLITS, PATH}
        return frozenset((by_splits if self.splits else set()) | ({GRADIENT} if self.gradient else set()))

    def allowed(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers that may be told."""
        return {key: value for key, value in numbers.items() if self.tells is None or key in self.tells}

    def evaluation(self, metrics: MetricRecord) -> Evaluation:
        """Return what an app's answer to EVALUATE measured.

        Raises:
            ConfigError: it names no loss, or several.
        """
        loss = self._one(metrics, self.loss, _LOSS)
        if loss is None:
            named = f"'{self.loss}'" if self.loss else "that ends in 'loss'"
            there = ", ".join(f"'{key}'" for key in metrics) or "nothing"
            raise ConfigError(f'the app\'s evaluate tells no single number {named} (it tells {there}): loss="..."')
        score, metric = self._one(metrics, self.metric, _ACCURACY), ACCURACY
        if score is not None and not _ACCURACY.search(score):
            name = re.sub("[^a-z0-9]+", "-", score.lower()).strip("-")
            metric = Metric(name, self.higher_is_better, low=-np.inf, high=np.inf)
        others = _numbers(metrics)
        for key in (self.examples, keys.NUM_EXAMPLES, keys.LOSS, metric.name):
            others.pop(key, None)
        value = float("nan") if score is None else float(_number(metrics, score))
        return Evaluation(float(_number(metrics, loss)), value, metric, self.allowed(others))

    def judged(self, metrics: MetricRecord, loss: bool) -> set[str]:
        """Return the names of the metric and, where it may be told, of the loss."""
        names = {self._one(metrics, self.metric, _ACCURACY)} - {self._one(metrics, self.loss, _LOSS)}
        return {name for name in names | {self._one(metrics, self.loss, _LOSS) if loss else None} if name is not None}

    def count(self, metrics: MetricRecord, kind: str) -> int:
        """Return the number of examples of an answer.

        Raises:
            ConfigError: it tells none.
        """
        if self.examples not in metrics:
            raise ConfigError(f"the app's {kind} tells no '{self.examples}': the number of its examples")
        count = _number(metrics, self.examples)
        if not 0 <= count <= keys.MOST_EXAMPLES:  # NaN, too
            raise ConfigError(f"the app's {kind} tells '{self.examples}' = {count}: a number of examples is allowed")
        return max(1, round(count))

    @staticmethod
    def _one(metrics: MetricRecord, name: str, ending: re.Pattern[str]) -> str | None:
        fitting = [key for key in metrics if (key == name if name else ending.search(key))]
        return fitting[0] if len(fitting) == 1 else None


def _number(metrics: MetricRecord, key: str) -> float:
    value = metrics[key]
    if isinstance(value, list):
        raise ConfigError(f"the app tells '{key}' as a list: one number is allowed")
    return value


@dataclass(frozen=True)
class Attended:
    """The message that a client attends to, as it came.

    Attributes:
        message: the message.
        context: the app's own context.
        record: names of the message's ArrayRecord and ConfigRecord.
        train_config: what the app's ``train`` is told.
        evaluate_config: what its ``evaluate`` is told.
    """

    message: Message
    context: Context
    record: tuple[str, str]
    train_config: ConfigRecord
    evaluate_config: ConfigRecord

    @property
    def model(self) -> ArrayRecord:
        """The model that was sent."""
        model = self.message.content[self.record[0]]
        assert isinstance(model, ArrayRecord)
        return model


QUERY_GRADIENT = "query"


class AppLearner(Learner):
    """One client's Flower app.

    Args:
        app: the app.
        interface: what it tells and can do.
        config: the run's settings.

    Attributes:
        attended: the message that the client attends to.
        store: where it remembers; set with each message.
        joined: the app's reply to the round that it has joined.
    """

    attended: Attended
    store: Store

    def __init__(self, app: Callable[[Message, Context], Message], interface: Interface, config: RunConfig) -> None:
        self._app, self._interface, self._steps = app, interface, max(1, config.local_steps)
        self.can, self.holds_out = interface.can, config.holds_out and interface.splits
        self._cross_fit = config.cross_fits and HALVES in self.can
        self.joined: Message | None = None
        self._layout: tuple[ArrayRecord, Layout] | None = None

    def attend(self, attended: Attended, store: Store, run_key: str) -> None:
        """Take up a message of a run, with the run's records."""
        self.attended, self.store, self.joined = attended, store, None
        self.data_fingerprint = run_key  # what the app is told, and so its requirement, is the run's

    @property
    def expects(self) -> Layout:  # type: ignore[override]
        """Layout of the model that was sent: the app has to know it."""
        model = self.attended.model
        if self._layout is None or self._layout[0] is not model:
            self._layout = model, Layout.of({name: view(array) for name, array in model.items()})
        return self._layout[1]

    def examples(self, split: str) -> int:
        """Return the number of examples of the app's latest answer of that kind, else of an evaluation."""
        kind = MessageType.TRAIN if split == keys.TRAIN_SPLIT else MessageType.EVALUATE
        for one in (f"{kind}{self._of_split(split)}", f"{MessageType.EVALUATE}{self._of_split(split)}"):
            if (known := self.store.read(f"{_SIZE}-{one}")) is not None:
                return int(known.values["examples"])
        arrays = {name: view(array) for name, array in self.attended.model.items()}
        self.measure(arrays, split, Sent(content_hash(self.attended.model)))
        return self.examples(split)

    def measure(self, arrays: Arrays, split: str, sent: Sent | None = None) -> Evaluation:
        """Return what the app's ``evaluate`` measures; of the latest model that was sent it is asked once."""
        model, where = ("" if sent is None else sent.model), self._of_split(split)
        if model and (known := self.store.read(_LATEST)) is not None and known.values["model"] == f"{where}/{model}":
            return self._interface.evaluation(_metrics_of(known))
        config = {**self.attended.evaluate_config, **({keys.SPLIT: split} if self._interface.splits else {})}
        reply = self._ask(MessageType.EVALUATE, self.record(arrays), config, self._aside())
        return self.note(reply, f"{where}/{model}" if model else "", where)

    @property
    def halves(self) -> bool:  # type: ignore[override]
        """Whether the client judges by halves of its held-out data: where the run asks for it, and they suffice."""
        return self._cross_fit and self.examples(keys.HELD_OUT_SPLIT) >= FEWEST_HALVED

    def _of_split(self, split: str) -> str:
        """Return the name of a split where the app knows splits, else nothing."""
        return split if self._interface.splits else ""

    def note(self, reply: Message, model: str, split: str = "") -> Evaluation:
        """Return what an answer to EVALUATE measured, and remember it.

        Args:
            reply: the answer.
            model: of which model, with its split; empty: of one that is not asked about again.
            split: on which of the app's splits.

        Raises:
            ConfigError: the answer is none.
        """
        metrics = _single(reply, MetricRecord, MessageType.EVALUATE)[1]
        evaluation = self._interface.evaluation(metrics)
        self._note_examples(MessageType.EVALUATE, metrics, split)
        if model:
            told = {f"told.{key}": json.dumps(v) if isinstance(v, list) else v for key, v in metrics.items()}
            self.store.write(_LATEST, StoredRecord({"model": model, **told}))
        return evaluation

    def train(self, arrays: Arrays, job: Job) -> Arrays:
        """Return what calls of the app's ``train`` make of a model: one for a round; for rho_k, one a solo step.

        Raises:
            NotReady: training alone has to go on with a later message.
        """
        config = {**self.attended.train_config, **job.rule.settings.as_config()}
        if job.purpose == JOINED:
            self.joined = reply = self._ask(MessageType.TRAIN, self.record(arrays), config)
            self._note_examples(MessageType.TRAIN, _single(reply, MetricRecord, MessageType.TRAIN)[1])
            return self._trained_model(reply)
        calls = job.training.local_steps if job.purpose == WARM_UP else -(-job.training.local_steps // self._steps)
        return self._alone(arrays, calls, job.purpose == WARM_UP and not self._interface.splits)

    def path(self, arrays: Arrays, job: Job, stretches: int) -> Iterator[Arrays]:
        """Yield the models after each of some stretches of calls."""
        for part in np.array_split(np.arange(job.training.local_steps), stretches):
            arrays = self._alone(arrays, len(part), False)
            yield arrays

    def initial(self, names: Sequence[str]) -> Arrays:
        """Return the first model that the client has seen, which stands for w_0."""
        if (progress := self.store.read(_PROGRESS)) is not None and progress.arrays:
            return {name: progress.arrays[f"start/{name}"] for name in names}
        return {name: view(self.attended.model[name]) for name in names}

    def follows(self, rule: LocalRule) -> bool:
        """Whether the app takes the rule's settings."""
        return rule.name in self._interface.rules

    @property
    def trainable(self) -> Sequence[str]:  # type: ignore[override]
        """All names of the model that was sent."""
        return list(self.attended.model)

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the app's gradient, or what one plain step of its ``train`` says of it.

        Raises:
            ConfigError: it cannot be of a batch.
        """
        if batch is not None:
            raise ConfigError("gradient-batch is not allowed for this client: its app returns whole gradients (0)")
        config, asks = self.attended.train_config, self._interface.gradient
        kind = f"{MessageType.QUERY}.gradient" if asks == QUERY_GRADIENT else MessageType.TRAIN
        reply = self._ask(kind, self.record(arrays), config)
        told = self._trained_model(reply)
        if asks == QUERY_GRADIENT:
            return told
        self.joined, rate = reply, config.get(asks)
        if not isinstance(rate, int | float) or rate <= 0:
            raise ConfigError(f"the app's learning rate '{asks}' is {rate!r} in what train is told: more than 0")
        return {name: np.asarray((arrays[name] - value) / rate, value.dtype) for name, value in told.items()}  # type: ignore[operator]

    def told(self) -> Mapping[str, Any]:
        """Return the further numbers of the app's reply to the round that it has joined."""
        if self.joined is None:
            return {}
        metrics = _single(self.joined, MetricRecord, MessageType.TRAIN)[1]
        return self._interface.allowed(_numbers(metrics))

    def let_out(self, reply: Message, discloses: Disclosure | None = None) -> Message:
        """Return an app's reply with what may be told alone: all of it, where no owner says.

        Args:
            reply: to a strategy that knows no volunteers.
            discloses: of an answer to EVALUATE: what else its owner lets it tell; None: it is a joined round's.
        """
        interface = self._interface
        if interface.tells is None:
            return reply
        name, metrics = _single(reply, MetricRecord, "reply")
        allowed = interface.tells
        if discloses is not None:
            judged = interface.judged(metrics, discloses.loss)
            allowed = allowed | judged if discloses.node.answer_evaluate else frozenset()
        numbers = {key: value for key, value in metrics.items() if key in allowed or key == interface.examples}
        models = {} if discloses is not None else dict(reply.content.array_records)
        reply.content = RecordDict({**models, name: MetricRecord(numbers)})
        return reply

    def record(self, arrays: Arrays) -> ArrayRecord:
        """Return arrays as a record, in the order in which the model was sent."""
        return array_record({name: arrays[name] for name in self.attended.model})

    def _alone(self, arrays: Arrays, calls: int, resumable: bool) -> Arrays:
        """Return the model after some calls; `NotReady` where they take longer than the message allows."""
        done, start, longest = 0, arrays, 0.0
        progress = self.store.read(_PROGRESS) if resumable else None
        if progress is not None and progress.arrays:
            done = int(progress.values["calls"])
            arrays = {name: progress.arrays[f"now/{name}"] for name in arrays}
        config = dict(self.attended.train_config)
        if _PULL in config or "prox" in self._interface.rules:  # 0, for an app that reads it unasked
            config[_PULL] = 0.0
        first, aside = done, self._aside()
        while done < calls:
            left = seconds_left(self.attended.message)
            if resumable and done > first and left < 2 * longest:
                kept = {
                    f"{when}/{name}": a for when, of in (("start", start), ("now", arrays)) for name, a in of.items()
                }
                self.store.write(_PROGRESS, StoredRecord({"calls": done}, kept))
                raise NotReady(f"it has trained alone {done} of {calls} times, and goes on with the next message")
            reply = self._ask(MessageType.TRAIN, self.record(arrays), config, aside)
            self._note_examples(MessageType.TRAIN, _single(reply, MetricRecord, MessageType.TRAIN)[1])
            arrays, done = self._trained_model(reply), done + 1
            longest = max(longest, left - seconds_left(self.attended.message))
        if resumable and progress is not None:
            self.store.write(_PROGRESS, StoredRecord({"calls": done}, {}))  # two models less
        return arrays

    def _aside(self) -> Context:
        """Return a copy of the app's context: what the client tries leaves nothing in it."""
        return copy.deepcopy(self.attended.context)

    def _ask(
        self, kind: str, model: ArrayRecord, config: Mapping[str, Any], context: Context | None = None
    ) -> Message:
        """Return the app's reply to a message of this client's own; None: in the app's own context."""
        attended = self.attended
        content = RecordDict({} if context else dict(attended.message.content))
        content[attended.record[0]], content[attended.record[1]] = model, ConfigRecord(dict(config))
        question = Message(content, reply_to=attended.message)
        question.metadata.message_type = kind
        return self._app(question, context or attended.context)

    def _trained_model(self, reply: Message) -> Arrays:
        """Return the model of an app's reply, which has to be like the one that it was sent."""
        name, model = _single(reply, ArrayRecord, MessageType.TRAIN)
        try:
            arrays = {key: view(array) for key, array in model.items()}
        except ValueError as error:
            raise ConfigError(f"the app's train returned in '{name}' what cannot be read: {error}") from None
        if (theirs := Layout.of(arrays)) != (expected := self.expects):
            wrong = next((a for a, b in zip(theirs.entries, expected.entries, strict=False) if a != b), None)
            text = (
                f"array {wrong[0]!r} of shape {wrong[1]} and dtype {wrong[2]}" if wrong else f"{len(arrays)} arrays"
            )
            raise ConfigError(f"the app's train returned {text}: names, shapes and dtypes of the model that was sent")
        return arrays

    def _note_examples(self, kind: str, metrics: MetricRecord, split: str = "") -> None:
        self.store.write(f"{_SIZE}-{kind}{split}", StoredRecord({"examples": self._interface.count(metrics, kind)}))


def _metrics_of(record: StoredRecord) -> MetricRecord:
    told = {key.removeprefix("told."): value for key, value in record.values.items() if key.startswith("told.")}
    return MetricRecord({key: json.loads(v) if isinstance(v, str) else v for key, v in told.items()})


def _numbers(metrics: MetricRecord) -> dict[str, Any]:
    """Return an app's numbers, and its lists of numbers."""
    return {key: list(value) if isinstance(value, list) else float(value) for key, value in metrics.items()}


def _single(reply: Message, kind: type[Any], handler: str) -> tuple[str, Any]:
    """Return name and value of a reply's only record of a kind.

    Raises:
        ConfigError: it is an error, or has none or several.
    """
    if reply.has_error():
        raise ConfigError(f"the app's {handler} answered with an error: {str(reply.error.reason)[:200]}")
    records = [(name, record) for name, record in reply.content.items() if isinstance(record, kind)]
    if len(records) != 1:
        raise ConfigError(f"the app's {handler} returned {len(records)} {kind.__name__}s: one is allowed")
    return records[0]
