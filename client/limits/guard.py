"""Checks of the owner's limits before a client answers and while it works.

They also make room for the state of a new run.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from flwr.app import ArrayRecord, ConfigRecord, Message

from client.limits.answer_book import EVALUATE, TRAIN, AnswerBook, question_digest
from client.limits.limits import MEGABYTE, LimitReached, Limits, read_limits
from client.state import preferred
from client.state.store import DiskStore
from fedappeal.core.local_rule import LocalRule, Store, StoredRecord
from fedappeal.flower.messages import seconds_left
from fedappeal.protocol import keys
from fedappeal.protocol.packing import content_bytes, content_hash
from fedappeal.settings.training import LocalTrainingSettings
from fedappeal.system.files import state_of
from fedappeal.system.locks import changing

KEPT_RUNS = 20
"""Latest runs of which everything is kept."""
KEPT_LEFT = 256
"""Latest runs of which it is kept that the client has left them for good."""
_RUN, _REQUIREMENT = "run-", "requirement-"
_OF_A_RUN = ("", "-before")
"""Endings, after the run-key, of the names of a run's records."""
_NEVER = frozenset({"identity", "node", "noise-key", preferred.LATEST})


def prune(store: DiskStore, book: AnswerBook, served: str, max_state: float, needed: int = 0) -> None:
    """Forget old runs: those beyond `KEPT_RUNS`, and further ones while the state is too large.

    Args:
        store: the client's state.
        book: says in which order the runs were asked for.
        served: the run-key of the run that is served.
        max_state: MB that the folder may hold; 0: no limit.
        needed: bytes that the run that is served still needs.

    Raises:
        LimitReached: if there is no room for the run.
    """
    runs = _oldest_first(store, book, served)
    left_runs = {key for key in runs if store.readable_values(_RUN + key).get("left-round")}
    past = runs[:-1]
    for key in past[: max(0, len(runs) - KEPT_RUNS)]:
        _forget(store, key, runs, keep_mark=key in left_runs)
    for key in [key for key in past if key in left_runs][:-KEPT_LEFT]:
        store.delete(_RUN + key)
    _forget_requirements(store)
    if not max_state:
        return
    allowed = max_state * MEGABYTE - needed
    for key in past:
        if size_of(store) <= allowed:
            return
        _forget(store, key, runs, keep_mark=key in left_runs)
        store.delete(preferred.record_name(key))
        _forget_requirements(store)
    if size_of(store) > allowed:
        raise LimitReached(f"this run needs more room than this client's max-state = {max_state:g} MB leaves")


def size_of(store: DiskStore) -> int:
    """Return the bytes of all records."""
    return sum(state.st_size for file in store.folder.rglob("*.safetensors") if (state := state_of(file)))


def _oldest_first(store: DiskStore, book: AnswerBook, served: str) -> list[str]:
    """Return the run-keys of all runs that have a record, the one that is served last."""
    order = {key: place for place, key in enumerate(book.runs())}
    keys = [key for key in store.keys(_RUN) if key != served]
    return [*sorted(keys, key=lambda key: (order.get(key, -1), store.written_at(_RUN + key))), served]


def _forget(store: DiskStore, key: str, runs: Sequence[str], *, keep_mark: bool) -> None:
    """Forget the records of a run.

    The model that the client preferred stays. So does the mark of having left the run, with ``keep_mark``.
    """
    for name in store.names():
        if name.startswith(f"{preferred.LATEST}-") or _run_of(name, runs) != key:
            continue
        if name == _RUN + key and keep_mark:
            if (values := store.readable_values(name)).get("requirement"):
                store.write(name, StoredRecord({**values, "requirement": ""}))
        else:
            store.delete(name)


def _run_of(name: str, runs: Iterable[str]) -> str | None:
    """Return the run that a record's name belongs to.

    None where it belongs to none. Where several run-keys fit, the longest.
    """
    if name in _NEVER or name.startswith(_REQUIREMENT):
        return None
    run_keys = [key for key in runs if any(name.endswith(f"-{key}{after}") for after in _OF_A_RUN)]
    return max(run_keys, key=len, default=None)


def _forget_requirements(store: DiskStore) -> None:
    """Forget requirements that no run refers to."""
    used = {store.readable_values(_RUN + key).get("requirement", "") for key in store.keys(_RUN)}
    for name in store.names():
        if name.startswith(_REQUIREMENT) and name not in used:
            store.delete(name)


_LARGEST_CONFIG = 64_000
"""Bytes of all that a message tells beside its models."""
_MOST_PLUGINS = 100
"""Lines about plug-ins in a roll call."""
_MODELS_OF_A_RUN = 3
"""Models that a run leaves in the state: the one trained alone, and the preferred one twice."""
_WAY_BACK = 0.1
"""Share of a message's time that is kept for the answer's way back."""
_LONGEST_WAY_BACK = 1.0
_MEMORY_EVERY = 1.0
"""Seconds between two looks at the memory."""
_SHORTEST_REST = 0.01


def memory_held() -> int:
    """Return the bytes that this process holds in memory."""
    return int(psutil.Process().memory_info().rss)


@dataclass
class Deadline:
    """The time that is left for one message, looked at before each gradient.

    On the monotonic clock: a clock that is set while a client trains changes nothing.

    Attributes:
        until: when work has to stop.
        reason: what is said then.
        max_memory: bytes that runs may add to what the process held before them; 0: not looked at.
        clock: seconds, monotonic.
        held: returns the bytes that runs have added.
        max_cpu: cores that work may take on the average since it began; 0: any number.
        used: returns the CPU seconds of this process.
        sleep: waits.
    """

    until: float
    reason: str
    max_memory: float = 0.0
    clock: Callable[[], float] = time.monotonic
    held: Callable[[], int] = memory_held
    max_cpu: float = 0.0
    used: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep
    _look: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock(), self.used()

    @classmethod
    def of(cls, left: float, ttl: float, limits: Limits, held: Callable[[], int] = memory_held) -> "Deadline":
        """Return the deadline of a message.

        Args:
            left: seconds until its time is over.
            ttl: seconds for which it counted at first.
            limits: the owner's.
            held: returns the bytes that runs have added.
        """
        left -= min(_LONGEST_WAY_BACK, _WAY_BACK * ttl)
        reason = "the message's deadline came before the work was done"
        if limits.max_seconds and limits.max_seconds < left:
            left = limits.max_seconds
            reason = f"the work took longer than this client's max-seconds = {left:g}"
        return cls(time.monotonic() + left, reason, limits.max_memory * MEGABYTE, held=held, max_cpu=limits.max_cpu)

    def check(self) -> None:
        """Check that there is time and memory; wait where work was too fast.

        Memory is looked at about once a second.

        Raises:
            LimitReached: if not.
        """
        if (owed := self.seconds_owed()) > _SHORTEST_REST:
            self.sleep(min(owed, max(0.0, self.until - self.clock())))
        now = self.clock()
        if now >= self.until:
            raise LimitReached(self.reason)
        if self.max_memory and now >= self._look:
            self._look = now + _MEMORY_EVERY
            if self.held() > self.max_memory:
                most = self.max_memory / MEGABYTE
                raise LimitReached(f"the work takes more memory than this client's max-memory = {most:g} MB")

    def seconds_owed(self) -> float:
        """Return the seconds for which work has to wait.

        After them, it has taken no more cores than it may.
        """
        if not self.max_cpu:
            return 0.0
        clock, used = self._began
        return (self.used() - used) / self.max_cpu - (self.clock() - clock)


class Guard:
    """Keeps one client inside its owner's limits.

    Attributes:
        limits: as they were when the message came.
        deadline: of the message; None before the first.
    """

    def __init__(self, folder: Path | None, text: str = "") -> None:
        """Begin.

        Args:
            folder: the state folder, with the file of limits and the count of answers; None: neither.
            text: limits that go before those of the file.

        Raises:
            ConfigError: for limits that are not allowed.
        """
        self._folder = folder
        self._text = text
        self._book = AnswerBook(folder) if folder else None
        self._moved = 0
        self._held_before = memory_held()
        self.deadline: Deadline | None = None
        self.limits = self.limits_now()

    def limits_now(self) -> Limits:
        """Return the limits, with what was changed in the file.

        Raises:
            ConfigError: for a file that is damaged, or limits that are not allowed.
        """
        return (read_limits(self._folder) if self._folder else Limits()).with_text(self._text)

    def memory_added(self) -> int:
        """Return the bytes that the process holds beyond what it held before its first run."""
        return max(0, memory_held() - self._held_before)

    def begin(self, message: Message) -> None:
        """Begin to answer a message.

        Raises:
            LimitReached: if it tells more than a message may.
        """
        self.limits = limits = self.limits_now()
        self.deadline = Deadline.of(seconds_left(message), message.metadata.ttl, limits, self.memory_added)
        self.deadline.check()
        if limits == Limits.off():
            return
        settings = [record for record in message.content.values() if not isinstance(record, ArrayRecord)]
        if sum(len(record.deflate()) for record in settings) > _LARGEST_CONFIG:
            raise LimitReached(f"the message tells more than {_LARGEST_CONFIG} bytes beside its models")
        if str(config_of(message).get(keys.PLUGINS, "")).count("\n") >= _MOST_PLUGINS:
            raise LimitReached(f"the roll call names more than {_MOST_PLUGINS} plug-ins")

    def check_question(self, message: Message, model: str) -> None:
        """Count the question that a message asks about a model.

        Args:
            message: the message; a roll call asks nothing.
            model: content hash of the model that it brings.

        Raises:
            LimitReached: if it may not be answered.
        """
        kind = message.metadata.message_type.partition(".")[0]
        if self._book is None or kind not in (TRAIN, EVALUATE) or not self.limits.counts_answers:
            return
        models = {keys.ARRAYS: model}
        for name, record in message.content.items():
            if isinstance(record, ArrayRecord) and name != keys.ARRAYS:
                models[name] = content_hash(record)
        config = config_of(message)
        run = str(config.get(keys.RUN_KEY, "")) or f"run {message.metadata.run_id}"
        server_round = int(config.get(keys.SERVER_ROUND, 0))
        self._book.answer(kind, run, server_round, question_digest(models, config), self.limits)

    def check_training(self, rule: LocalRule, training: LocalTrainingSettings, examples: int) -> None:
        """Check that a training takes no more gradients than the owner allows.

        Nothing is drawn before this check.

        Raises:
            LimitReached: if it takes more.
        """
        gradients, most = rule.gradients(training.steps(examples)), self.limits.max_steps
        if most and gradients > most:
            refused = f"a training of {gradients} gradients is not allowed"
            raise LimitReached(f"{refused}: this client's max-steps = {most}")
        if self.deadline is not None:
            self.deadline.check()

    def check_sent(self, rule: LocalRule, training: LocalTrainingSettings, examples: int, is_own: bool) -> None:
        """Check a training whose result is sent: what is behind it must not be too little.

        Args:
            rule: the local rule.
            training: how much it trains.
            examples: how many the client trains on.
            is_own: whether they are its owner's. How many of them are left to train on is the run's to say, so they
                count as a batch; a share of a task's data is as small as it is.

        Raises:
            LimitReached: for fewer gradients, or fewer examples behind one, than the owner allows.
        """
        self.check_training(rule, training, examples)
        limits, batch, gradients = self.limits, rule.examples(training), rule.gradients(training.steps(examples))
        if is_own:
            batch = min(batch or examples, examples)
        if 0 < batch < limits.min_batch:
            raise LimitReached(f"a batch of {batch} is not allowed: this client's min-batch = {limits.min_batch}")
        if gradients < limits.min_steps:
            raise LimitReached(
                f"a training of {gradients} gradients is not allowed: this client's min-steps = {limits.min_steps}"
            )

    def moved(self, count: int) -> None:
        """Count bytes of models that were sent or fetched; where the disk fails they are counted later."""
        self._moved += count
        if self._book is not None and self._moved:
            with suppress(OSError, LimitReached):
                self._book.move(self._moved)
                self._moved = 0

    def moved_today(self) -> int:
        """Return the bytes of models that were sent and fetched today (UTC)."""
        return self._book.bytes_moved() if self._book is not None else 0

    def begin_run(self, run_key: str, initial: ArrayRecord) -> None:
        """Count a run that begins.

        Raises:
            LimitReached: if no further run may begin today.
        """
        if self._book is not None and self.limits.counts_answers:
            self._book.begin(run_key, content_hash(initial), self.limits)

    def make_room(self, store: Store, run_key: str, initial: ArrayRecord, own_models: int = 0) -> None:
        """Forget old runs, so that the state stays within its limits; ``own_models``: further ones that are kept.

        Raises:
            LimitReached: if there is no room for this run.
        """
        if self._book is not None and isinstance(store, DiskStore):
            needed = (_MODELS_OF_A_RUN + own_models) * content_bytes(initial)
            with changing(store.folder):
                prune(store, self._book, run_key, self.limits.max_state, needed)


def config_of(message: Message) -> Mapping[str, Any]:
    """Return the config of a message.

    Empty where it has none.
    """
    config = message.content.get(keys.CONFIG) if message.has_content() else None
    return config if isinstance(config, ConfigRecord) else {}
