"""Checks of a client's reply before the server uses it."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import one_line, printable
from fedappeal.protocol.keys import CLIENT_IDS, DataProblem, Decision, is_client_id
from fedappeal.protocol.metric import ACCURACY, Metric
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import Reply, claim, unexpected
from strategies.rounds.sums.weighted_sum import NotFinite, Refused

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)

MOST_EXAMPLES = 10**12
"""Most examples that a client may claim: beyond it, a weight says nothing and float32 overflows."""
_SHOWN = 80
"""Characters of a client's text that a reason quotes."""
_SHARES = (keys.APPEALED, keys.APPEALED_TRAIN, keys.APPEALED_HELD_OUT, keys.SERVED)


class DataRefused(Refused):
    """A client's own data do not fit the run; the message names the client.

    Attributes:
        client_id: the client.
        problem: what is wrong with its data.
    """

    def __init__(self, client_id: str, problem: DataProblem) -> None:
        super().__init__(f"client {client_id}: {problem.text}")
        self.client_id = client_id
        self.problem = problem


def _record(message: Message, name: str, kind: type[R]) -> R | None:
    # Not `content.array_records[name]`: that ties the content into a reference cycle, so that each model would
    # stay in memory until the garbage collector comes by.
    record = message.content.get(name)
    return record if isinstance(record, kind) else None


def _content(message: Message) -> MetricRecord:
    if message.has_error():
        reason = one_line(message.error.reason or "")  # it is the client's text
        raise Refused(reason or f"error code {message.error.code}")
    if (metrics := _record(message, keys.METRICS, MetricRecord)) is None:
        raise Refused(f"reply has no MetricRecord '{keys.METRICS}'")
    for key, value in metrics.items():
        if isinstance(value, list):
            raise Refused(f"{printable(key, _SHOWN)} = {printable(value, _SHOWN)} is not a finite number")
        if not math.isfinite(value):
            raise NotFinite(f"{printable(key, _SHOWN)} = {value!r} is not a finite number")
    return metrics


def _num_examples(metrics: MetricRecord) -> int:
    count = claim(metrics, keys.NUM_EXAMPLES)
    if not 1 <= count <= MOST_EXAMPLES or count != int(count):
        raise Refused(f"{keys.NUM_EXAMPLES} = {count} is not allowed: a whole number, 1 to {MOST_EXAMPLES}")
    return int(count)


def _data_problem(value: object) -> DataProblem:
    try:
        return DataProblem(str(value))
    except ValueError:
        allowed = ", ".join(DataProblem)
        raise Refused(f"{keys.DATA_REFUSED} = {str(value)[:40]!r} is not allowed: {allowed}") from None


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse a reply whatever its reading raises: it is one client's."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(unexpected(error)) from error


@_refusing()
def read_train(member: Member, message: Message, also: Iterable[str] = ()) -> Reply:
    """Check a reply to TRAIN.

    Args:
        member: the client that answers.
        message: the reply. Without a decision it joins: a ClientApp that knows no volunteers sends none.
        also: ArrayRecords that a joined reply carries besides the model.

    Raises:
        Refused: an error reply, an unknown decision, a number that is not finite, a join without a model.
    """
    metrics = _content(message)
    number = claim(metrics, keys.DECISION) if keys.DECISION in metrics else int(Decision.JOINED)
    if number not in set(Decision):
        raise Refused(f"{keys.DECISION} = {number} is not allowed: {', '.join(str(int(d)) for d in Decision)}")
    decision = Decision(int(number))
    records: dict[str, ArrayRecord] = {}
    if decision is Decision.JOINED:
        for name in (keys.ARRAYS, *also):
            if (arrays_of_name := _record(message, name, ArrayRecord)) is None:
                raise Refused(f"reply joins without the ArrayRecord '{name}'")
            records[name] = arrays_of_name
    arrays = records.pop(keys.ARRAYS, None)
    arrays = ArrayRecord() if arrays is None else arrays  # one that is elsewhere is empty
    return Reply(member, decision, _num_examples(metrics), metrics, arrays, records)


@_refusing()
def read_evaluate(message: Message, metric: Metric = ACCURACY) -> MetricRecord:
    """Check a reply to EVALUATE.

    Args:
        message: the reply.
        metric: the task's primary metric.

    Raises:
        Refused: an error reply, a number that is not finite, a share outside [0, 1], a metric out of its bounds.
    """
    metrics = _content(message)
    _num_examples(metrics)
    for key in _SHARES:
        if key in metrics:
            claim(metrics, key, 0, 1)
    for prefix in ("", keys.PREFERRED, keys.ADAPTED):
        if prefix + metric.name in metrics:
            claim(metrics, prefix + metric.name, metric.low, metric.high)
    return metrics


def _info(message: Message) -> ConfigRecord:
    """Return who a client says it is; empty where it does not say."""
    record = None if message.has_error() else _record(message, keys.INFO, ConfigRecord)
    return ConfigRecord() if record is None else record


@_refusing()
def read_client_id(message: Message) -> str:
    """Return the client-id of an answer to the roll call.

    Raises:
        Refused: there is none, or one that is not allowed.
    """
    if not (client := str(_info(message).get(keys.CLIENT_ID, ""))):
        raise Refused(f"reply has no '{keys.CLIENT_ID}'")
    if not is_client_id(client):
        raise Refused(f"{keys.CLIENT_ID} = '{printable(client, _SHOWN)}' is not allowed: {CLIENT_IDS}")
    return client


@_refusing()
def read_roll_call(message: Message) -> Member:
    """Check a reply to the roll call.

    Raises:
        DataRefused: the client's own data do not fit the run.
        Refused: an error reply (a client that does not fit the run says why), or a reply without an id.
    """
    info = _info(message)
    declined = keys.DATA_REFUSED in info
    metrics = MetricRecord() if declined else _content(message)
    client = read_client_id(message)
    if declined:
        raise DataRefused(client, _data_problem(info[keys.DATA_REFUSED]))
    role = info.get(keys.ROLE, keys.SEEN)
    if role not in (keys.SEEN, keys.UNSEEN):
        raise Refused(f"{keys.ROLE} = {printable(role, _SHOWN)!r} is not allowed: {keys.SEEN}, {keys.UNSEEN}")
    return Member(
        client_id=client,
        node_id=message.metadata.src_node_id,
        role=str(role),
        priority=bool(info.get(keys.PRIORITY, 0)),
        num_examples=_num_examples(metrics),
        left=bool(info.get(keys.LEFT_RUN, 0)),
        version=printable(info.get(keys.VERSION, ""), _SHOWN),
    )


def read_proof(message: Message) -> tuple[str, bytes] | None:
    """Return the proof that an answer to the roll call carries, None where it carries none; not checked yet.

    Returns:
        The client's own public key in PEM, and a signature (`fedappeal.protocol.proof`).

    Raises:
        Refused: half a proof, or one of other types.
    """
    info = _info(message)
    if not {keys.PUBLIC_KEY, keys.SIGNATURE} & info.keys():
        return None
    public_key, signature = info.get(keys.PUBLIC_KEY), info.get(keys.SIGNATURE)
    if not isinstance(public_key, str) or not isinstance(signature, bytes):
        raise Refused(f"'{keys.PUBLIC_KEY}' has to be a text and '{keys.SIGNATURE}' bytes")
    return public_key, signature
