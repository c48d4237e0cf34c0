"""Counts of a client's answers: by run, round and question, and by day.

A reply tells something of the client: a weight, whether the model appeals, a trained model. What a server may learn
is bounded by counting: under one round number of a run one TRAIN is answered and a few EVALUATEs, for the same model
and settings again where they come again (a resumed run repeats a round), and a day has a limit. The counts are one
small file of the state folder.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from client.limits.limits import LimitReached, Limits
from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.system.files import replace_file
from fedappeal.system.locks import changing

ANSWERS = "answers.json"
"""The file's name in the state folder."""
KEPT_RUNS = 32
"""Runs of which the questions are remembered; the one asked longest ago is forgotten first."""
KEPT_ROUNDS = 8
"""Latest round numbers of a run, of TRAIN and of EVALUATE each; an earlier one is over."""
MOST_REPEATS = 8
"""Most answers to one question of a round."""
TRAIN, EVALUATE = "train", "evaluate"
"""Types of messages."""
_DAY = 86400
_NOT_ASKED = frozenset({keys.SERVER_ROUND, keys.RUN_KEY, keys.LAYOUT, keys.MANDATORY, keys.FINAL})
"""Keys of a message that change nothing of what is answered, or name the round."""

log = logging.getLogger("fedappeal.client")


def question_digest(models: Mapping[str, str], config: Mapping[str, object]) -> str:
    """Return the hash of what decides an answer.

    A strategy's values of the round are left out: they may differ where a resumed run repeats a round.

    Args:
        models: content hashes of the message's arrays, by name.
        config: of the message.
    """
    of_strategy = f"{config.get(keys.STRATEGY, '')}."
    settings = {k: v for k, v in config.items() if k not in _NOT_ASKED and not k.startswith(of_strategy)}
    text = repr((sorted(models.items()), sorted(settings.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Rounds = dict[int, dict[str, int]]
"""By round number: how often each question was answered, by its digest."""


class _Run(BaseModel):
    """A run: its initial model's hash, and how often each question was answered."""

    initial: str = ""
    train: Rounds = {}
    evaluate: Rounds = {}


class _Counts(BaseModel):
    """Counts of one day."""

    rounds: int = 0
    runs: int = 0
    bytes: int = 0


class _Content(BaseModel):
    """Content of the file: the day, its counts, and each run's questions."""

    day: int = 0
    counts: _Counts = _Counts()
    runs: dict[str, _Run] = {}

    def run(self, key: str) -> _Run:
        """Return what is known of a run, which becomes the latest."""
        run = self.runs[key] = self.runs.pop(key, _Run())
        while len(self.runs) > KEPT_RUNS:
            del self.runs[next(iter(self.runs))]
        return run

    def begin_day(self, today: int) -> None:
        """Begin to count anew where it is another day."""
        if today != self.day:
            self.day, self.counts = today, _Counts()

    def count(self, what: str, most: int, today: int) -> None:
        """Count a round or a run of today.

        Raises:
            LimitReached: there were enough.
        """
        self.begin_day(today)
        if most and getattr(self.counts, what) >= most:
            raise LimitReached(f"this client's max-{what} = {most} a day is reached: ask again tomorrow (UTC)")
        setattr(self.counts, what, getattr(self.counts, what) + 1)


class AnswerBook:
    """Counts of a client's answers in a file of its state folder, read anew each time.

    Args:
        folder: the state folder.
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / ANSWERS
        self._clock = clock

    def runs(self) -> list[str]:
        """Return the runs that asked something, the latest last."""
        return list(self._read().runs)

    def answer(self, kind: str, run_key: str, number: int, digest: str, limits: Limits) -> None:
        """Count a question about a model that is about to be answered.

        Args:
            kind: `TRAIN` or `EVALUATE`.
            run_key: the run's; of a run without one, its number.
            number: of the round.
            digest: equal for equal models and settings.
            limits: the owner's.

        Raises:
            LimitReached: if it may not be answered, or the counts cannot be read.
        """
        round_name = f"round {number} of this run"
        most, limit = 1, "it trains one model with one set of settings a round"
        if kind == EVALUATE:
            most, limit = limits.max_evaluations, f"max-evaluations = {limits.max_evaluations}"
        with self._changed() as content:
            run = content.run(run_key)
            rounds: Rounds = getattr(run, kind)
            if number not in rounds and len(rounds) >= KEPT_ROUNDS and number < min(rounds):
                raise LimitReached(f"{round_name} is over: this client was asked about round {max(rounds)}")
            questions = rounds.get(number, {})
            if digest not in questions and most and len(questions) >= most:
                raise LimitReached(f"this client has answered another question in {round_name}: {limit}")
            if (times := questions.get(digest, 0)) >= MOST_REPEATS:
                raise LimitReached(f"this client has answered the same question {times} times in {round_name}")
            if number not in run.train and number not in run.evaluate:
                content.count("rounds", limits.max_rounds, self._today())
            rounds[number] = {**questions, digest: times + 1}
            for old in sorted(rounds)[:-KEPT_ROUNDS]:
                del rounds[old]

    def begin(self, run_key: str, initial: str, limits: Limits) -> None:
        """Count a run that is about to begin, or begins again from another model.

        Args:
            run_key: the run.
            initial: content hash of its initial model.
            limits: the owner's.

        Raises:
            LimitReached: if no further run may begin today.
        """
        with self._changed() as content:
            run = content.run(run_key)
            if run.initial != initial:
                content.count("runs", limits.max_runs, self._today())
                run.initial = initial

    def move(self, count: int) -> None:
        """Count bytes that were sent or fetched."""
        with self._changed() as content:
            content.begin_day(self._today())
            content.counts.bytes += count

    def bytes_moved(self) -> int:
        """Return the bytes that were sent and fetched today."""
        content = self._read()
        return content.counts.bytes if content.day == self._today() else 0

    def forget(self) -> None:
        """Forget all runs; what was answered today still counts."""
        with self._changed() as content:
            content.runs = {}

    def _today(self) -> int:
        return int(self._clock() // _DAY)

    @contextmanager
    def _changed(self) -> Iterator[_Content]:
        """Give the counts, to be kept as the block leaves them; another process that changes them waits."""
        with changing(self._path.parent):
            content = self._read()
            yield content
            # Not forced to the disk: a power cut may cost a few counts, and a small device's card lives longer.
            replace_file(self._path, content.model_dump_json().encode(), durable=False, mode=0o600)

    def _read(self) -> _Content:
        """Return the counts.

        Raises:
            LimitReached: they are there and cannot be read: to count anew would allow too much.
        """
        try:
            return _Content.model_validate(parse_json(self._path.read_bytes()))
        except FileNotFoundError:
            return _Content()
        except OSError as error:
            raise LimitReached(
                f"what this client answered cannot be read ('{self._path}': {error.strerror})"
            ) from None
        except ValueError as error:
            log.warning("%s cannot be read, and is begun anew: %s", self._path, str(error).splitlines()[0])
            return _Content()
