"""The messages of a round and their replies as they come: survey, training in waves, evaluation."""

from collections.abc import Iterator, Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedappeal.flower.messages import is_from_superlink
from fedappeal.protocol import keys
from fedappeal.protocol.metric import Metric
from fedappeal.protocol.packing import Allowance, content_bytes
from fedappeal.settings.config import Scalar
from strategies.rounds.exchange.exchange import NO_ANSWER, NOT_SENT, SURVEY, Addressed, Channel, Exchange
from strategies.rounds.exchange.members import Member
from strategies.rounds.exchange.replies import read_evaluate
from strategies.rounds.round import Instructions, Round, RoundRecord
from strategies.rounds.sums.weighted_sum import Refused


def train_messages(
    members: Sequence[Member],
    arrays: ArrayRecord,
    config: Mapping[str, Scalar],
    instructions: Instructions,
    ttl: float,
) -> list[Addressed]:
    """Return one TRAIN message for each client.

    Args:
        members: the clients.
        arrays: the global model.
        config: general settings; those of the instructions count before them, but for the round's own keys.
        instructions: what the strategy tells.
        ttl: seconds until the deadline.
    """
    last = {key: config[key] for key in (keys.SERVER_ROUND, keys.MANDATORY)}
    to_all = {**config, **instructions.all, **last}
    shared = RecordDict({keys.ARRAYS: arrays, **instructions.records, keys.CONFIG: ConfigRecord(dict(to_all))})
    messages = []
    for member in members:
        to_one = instructions.each.get(member.client_id)
        content = shared.copy()
        if to_one:
            content[keys.CONFIG] = ConfigRecord({**to_all, **to_one})
        messages.append((member, _message(member, MessageType.TRAIN, content, to_all, ttl)))
    return messages


def evaluate_messages(
    members: Sequence[Member], arrays: ArrayRecord, config: Mapping[str, Scalar], ttl: float
) -> list[Addressed]:
    """Return one EVALUATE message for each client; ``config``: theirs, ``ttl``: seconds."""
    content = RecordDict({keys.ARRAYS: arrays, keys.CONFIG: ConfigRecord(dict(config))})
    return [(m, _message(m, MessageType.EVALUATE, content.copy(), config, ttl)) for m in members]


def _message(member: Member, kind: str, content: RecordDict, config: Mapping[str, Scalar], ttl: float) -> Message:
    group = str(config[keys.SERVER_ROUND])
    return Message(content, member.node_id, kind, ttl=max(ttl, 0.001), group_id=group)


def train_replies(
    round: Round,
    channel: Channel,
    deadline: float,
    wanted: int,
    waves: Iterator[Sequence[Addressed]],
    records: int = 1,
    needs_all: bool = False,
) -> Iterator[Addressed]:
    """Ask wave after wave until enough clients have joined; yield each reply.

    It ends early where time is up or no client is left to ask. A wave is asked as soon as the clients that have not
    answered yet could not make up for what is missing, so while they still train. Clients that missed a deadline have
    as long to answer as the others take.

    Args:
        round: says how many have joined so far; counts failures and bytes.
        channel: the run's.
        deadline: of the round, on the channel's clock.
        wanted: number of joiners that the round is looking for.
        waves: the messages to clients that are asked together, made when a wave is due.
        records: ArrayRecords of a joined reply, which bound its size.
        needs_all: whether slow clients are waited for until the deadline all the same.
    """
    record = round.record
    exchange = Exchange(
        channel,
        deadline,
        MessageType.TRAIN,
        model_bytes=content_bytes(round.model),
        allowance=Allowance.of_models(round.model, records),
        needs_all=needs_all,
    )
    while not exchange.over:
        expected = exchange.expected
        while wanted - record.count("joined") > expected and exchange.seconds_left > 0:
            if not (messages := next(waves, ())):
                break
            reached, unreached = exchange.send(messages)
            for member in unreached:
                record.fail(member.client_id, NOT_SENT)
            if any(exchange.waits_for(member) for member in reached):
                expected += len(reached)
        if not exchange.open:
            break
        yield from exchange.poll(window=wanted - record.count("joined"))
    for member, reason in exchange.close():
        record.fail(member.client_id, reason)
    record.count_traffic(exchange.bytes_up, exchange.bytes_down)


def survey_answers(
    record: RoundRecord, channel: Channel, deadline: float, messages: Sequence[Addressed], metric: Metric
) -> Iterator[tuple[Member, MetricRecord]]:
    """Send the questions of a survey, and yield each answer; arguments as in `evaluation_answers`."""
    exchange = Exchange(channel, deadline, SURVEY)
    _, unreached = exchange.send(messages)
    yield from _checked(exchange, record, "survey", metric)
    for member, reason in [*((member, NOT_SENT) for member in unreached), *exchange.close()]:
        record.failures[member.client_id] = f"survey: {reason}"
    record.count_traffic(exchange.bytes_up, exchange.bytes_down)


def evaluation_answers(
    record: RoundRecord, channel: Channel, deadline: float, messages: Sequence[Addressed], metric: Metric
) -> list[tuple[Member, MetricRecord]]:
    """Send the EVALUATE messages that end a round; return the answers by client-id.

    Args:
        record: counts clients, answers that are left out, and bytes.
        channel: the run's.
        deadline: on the channel's clock.
        messages: what is asked.
        metric: the task's, whose bounds an answer has to keep.
    """
    exchange = Exchange(channel, deadline, MessageType.EVALUATE)
    exchange.send(messages)
    answers = list(_checked(exchange, record, "evaluation", metric))
    for member, reason in exchange.close():
        if reason != NO_ANSWER:
            record.add_failure(member.client_id, f"evaluation: {reason}")
    record.count_traffic(exchange.bytes_up, exchange.bytes_down)
    record.expected, record.evaluated = len(messages), len(answers)
    return sorted(answers, key=lambda answer: answer[0].client_id)


def _checked(
    exchange: Exchange, record: RoundRecord, purpose: str, metric: Metric
) -> Iterator[tuple[Member, MetricRecord]]:
    """Yield each answer to EVALUATE that is allowed; record why others are left out."""
    for member, message in exchange.replies():
        try:
            metrics = read_evaluate(message, metric)
        except Refused as error:
            record.add_failure(member.client_id, f"{purpose}: {error}")
            record.unusable += purpose == "evaluation" and not is_from_superlink(message)
        else:
            yield member, metrics
