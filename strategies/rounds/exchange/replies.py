"""The checks of clients' replies, each before the server uses it."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol import keys
from fedappeal.protocol.foreign_text import one_line, printable
from fedappeal.protocol.keys import CLIENT_IDS, DataProblem, Decision, is_client_id
from fedappeal.protocol.metric import ACCURACY, Metric
from fedappeal.protocol.packing import MOST_METRICS, view
from strategies.rounds.exchange.members import Member
from strategies.rounds.reply import NoAnswer, NotFinite, Refused, unexpected_error
from strategies.rounds.round import Reply, claim

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)
P = ParamSpec("P")
T = TypeVar("T")

MOST_IN_LIST = 1000
"""Numbers of a list among an app's metrics; and numbers beside lists, that no one here has named."""
_NEVER_MISSING = {keys.NUM_EXAMPLES, keys.LOSS, keys.TRAIN_LOSS, keys.ADAPTED_LOSS, *keys.APPEALS}
"""Numbers of an answer to EVALUATE that are no metrics; one that is not finite says that the model is of no use."""
_DECISIONS = {keys.SAT_OUT_ERROR: Decision.SAT_OUT, keys.LEFT_ERROR: Decision.LEFT}
_SHOWN = 80
"""Characters of a client's text that a reason quotes."""
NO_ANSWER = "no answer before the deadline"
_EXPIRED = tuple(f"Error: {what} Unavailable" for what in ("Message", "Reply Message", "Node"))
"""How Flower's reasons begin where a client was gone, or took no message before the message's time was over."""


class Declined(Refused):
    """A client says itself that it takes no part; the message names it.

    Attributes:
        client_id: the client.
    """

    def __init__(self, client_id: str, why: str) -> None:
        super().__init__(f"client {client_id}: {why}")
        self.client_id = client_id


class AwaitsApproval(Declined):
    """A client takes no part as long as its owner has not approved the run."""

    def __init__(self, client_id: str) -> None:
        super().__init__(client_id, "it waits for its owner's approval")


class DataRefused(Declined):
    """A client's own data do not fit the run.

    Attributes:
        problem: what is wrong with its data.
    """

    def __init__(self, client_id: str, problem: DataProblem) -> None:
        super().__init__(client_id, problem.text)
        self.problem = problem


def plain_reason(reason: str) -> str:
    """Return why a client failed, in words of ours where they are Flower's."""
    return NO_ANSWER if reason.startswith(_EXPIRED) else reason


def _record(message: Message, name: str, kind: type[R]) -> R | None:
    # Not `content.array_records[name]`: that ties the content into a reference cycle, so that each model would
    # stay in memory until the garbage collector comes by.
    record = message.content.get(name)
    if record is None and name in (keys.ARRAYS, keys.METRICS):  # another app's name for its only one
        of_kind = [one for one in message.content.values() if isinstance(one, kind)]
        return of_kind[0] if len(of_kind) == 1 else None
    return record if isinstance(record, kind) else None


def _content(message: Message, named: Iterable[str], may_miss: bool = False) -> dict[str, Any]:
    """Return a reply's numbers, as many as may be kept until a round's end.

    Args:
        message: the reply.
        named: numbers that the run knows, which all are kept.
        may_miss: whether metrics that are not finite are left out beside a loss.
    """
    if message.has_error():
        reason = one_line(message.error.reason or "")  # it is the client's text
        if is_from_superlink(message):
            raise NoAnswer(plain_reason(reason))
        raise Refused(reason or f"error code {message.error.code}")
    if (record := _record(message, keys.METRICS, MetricRecord)) is None:
        raise Refused(f"reply has no MetricRecord '{keys.METRICS}'")
    metrics: dict[str, Any] = dict(record.items())  # a record takes several times as long to read
    for key, value in list(metrics.items()):
        if isinstance(value, list):  # an app's own, which Flower averages by place
            if key in _NEVER_MISSING or len(value) > MOST_IN_LIST or not all(map(math.isfinite, value)):
                raise Refused(f"{printable(key, _SHOWN)} = {printable(value, _SHOWN)} is not a finite number")
            continue
        if not math.isfinite(value):
            if not may_miss or key in _NEVER_MISSING or keys.LOSS not in metrics:
                raise NotFinite(f"{printable(key, _SHOWN)} = {value!r} is not a finite number")
            del metrics[key]
    if len(metrics) > MOST_METRICS:
        known = _NEVER_MISSING.union(named)
        for kind, most in ((True, MOST_METRICS), (False, MOST_IN_LIST)):
            of_kind = [key for key, value in metrics.items() if isinstance(value, list) is kind and key not in known]
            for key in of_kind[most:]:
                del metrics[key]
    return metrics


def _arrays(message: Message, name: str) -> ArrayRecord:
    """Return a joined reply's record of arrays, which can be read as numbers, so that no strategy fails by them."""
    if (record := _record(message, name, ArrayRecord)) is None:
        raise Refused(f"reply joins without the ArrayRecord '{name}'")
    for key, array in record.items():
        try:
            dtype = view(array).dtype
        except ValueError as error:
            raise Refused(f"{name}: array '{printable(key, _SHOWN)}': {error}") from None
        if dtype.kind not in "biuf":
            raise Refused(f"{name}: array '{printable(key, _SHOWN)}' has dtype {dtype}: numbers are allowed")
    return record


def _num_examples(metrics: Mapping[str, Any], weighted_by: str = keys.NUM_EXAMPLES) -> float:
    """Return a client's number of examples, or what an author weighs it by."""
    if weighted_by != keys.NUM_EXAMPLES and weighted_by in metrics:
        return claim(metrics, weighted_by, 0, keys.MOST_EXAMPLES)
    count = claim(metrics, keys.NUM_EXAMPLES)
    if not 1 <= count <= keys.MOST_EXAMPLES or count != int(count):
        raise Refused(f"{keys.NUM_EXAMPLES} = {count} is not allowed: a whole number, 1 to {keys.MOST_EXAMPLES}")
    return int(count)


def _data_problem(value: object) -> DataProblem:
    try:
        return DataProblem(str(value))
    except ValueError:
        allowed = ", ".join(DataProblem)
        raise Refused(f"{keys.DATA_REFUSED} = {str(value)[:40]!r} is not allowed: {allowed}") from None


def _refusing(read: Callable[P, T]) -> Callable[P, T]:
    """Return a reader that refuses a reply whatever its reading raises: it is one client's."""

    @wraps(read)
    def refusing(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return read(*arguments, **named)
        except Refused:
            raise
        except Exception as error:
            raise Refused(unexpected_error(error)) from error

    return refusing


@_refusing
def read_train(
    member: Member, message: Message, also: Iterable[str] = (), weighted_by: str = keys.NUM_EXAMPLES
) -> Reply:
    """Check a reply to TRAIN.

    Args:
        member: the client that answers.
        message: the reply. Without a decision it joins: a ClientApp that knows no volunteers sends none.
        also: ArrayRecords that a joined reply carries besides the model.
        weighted_by: name of its number of examples.

    Raises:
        Refused: an error reply, an unknown decision, a number that is not finite, a join without a model, arrays that
            are damaged or hold no numbers.
    """
    if message.has_error() and message.error.code in _DECISIONS:  # a wrapped app that took us for a stock strategy
        return Reply(member, _DECISIONS[message.error.code], 1, MetricRecord(), ArrayRecord())
    metrics = _content(message, (keys.DECISION, weighted_by))
    number = claim(metrics, keys.DECISION) if keys.DECISION in metrics else int(Decision.JOINED)
    if number not in set(Decision):
        raise Refused(f"{keys.DECISION} = {number} is not allowed: {', '.join(str(int(d)) for d in Decision)}")
    decision = Decision(int(number))
    names = (keys.ARRAYS, *also) if decision is Decision.JOINED else ()
    records = {name: _arrays(message, name) for name in names}
    arrays = records.pop(keys.ARRAYS, ArrayRecord())
    return Reply(member, decision, _num_examples(metrics, weighted_by), metrics, arrays, records)


@_refusing
def read_evaluate(message: Message, metric: Metric = ACCURACY, others: Iterable[str] = ()) -> dict[str, Any]:
    """Check a reply to EVALUATE.

    Args:
        message: the reply.
        metric: the task's primary metric.
        others: names of the task's further metrics.

    Returns:
        Its numbers, without metrics that are not finite: a client without a metric still has a loss.

    Raises:
        Refused: an error reply, a loss that is not finite, a share outside [0, 1], a metric out of its bounds.
    """
    of_metric = [prefix + metric.name for prefix in ("", keys.PREFERRED, keys.ADAPTED)]
    metrics = _content(message, (*of_metric, *others), may_miss=True)
    _num_examples(metrics)
    for key in keys.APPEALS:
        if key in metrics:
            claim(metrics, key, 0, 1)
    for key in of_metric:
        if key in metrics:
            claim(metrics, key, metric.low, metric.high)
    return metrics


def _info(message: Message) -> ConfigRecord:
    """Return the record in which a client says who it is.

    Empty where it does not say.
    """
    record = None if message.has_error() else _record(message, keys.INFO, ConfigRecord)
    return ConfigRecord() if record is None else record


@_refusing
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


@_refusing
def read_roll_call(message: Message) -> Member:
    """Check a reply to the roll call.

    Raises:
        Declined: the client's own data do not fit the run, or its owner has not approved it.
        Refused: an error reply (a client that does not fit the run says why), or a reply without an id.
    """
    info = _info(message)
    declined = {keys.DATA_REFUSED, keys.APPROVAL} & info.keys()
    metrics = {} if declined else _content(message, ())
    client = read_client_id(message)
    if info.get(keys.APPROVAL) == keys.WAITING:
        raise AwaitsApproval(client)
    if keys.APPROVAL in info:
        raise Declined(client, "its owner has not approved the run")
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
        num_examples=int(_num_examples(metrics)),
        left=bool(info.get(keys.LEFT_RUN, 0)),
        version=printable(info.get(keys.VERSION, ""), _SHOWN),
    )


def read_proof(message: Message) -> tuple[str, bytes] | None:
    """Return the proof in an answer to the roll call, not checked yet.

    None where the answer carries none.

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
