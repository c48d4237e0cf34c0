"""A Flower ClientApp of a test's own, as a client process asks it."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.app import Answer
from client.outcome import ANSWERED, DECISIONS, EVALUATED, FAILED, Outcome
from fedappeal.protocol import keys

_KINDS = {"train": "trained", "evaluate": EVALUATED, "query": ANSWERED}


def outcomes_of(app: ClientApp) -> Answer:
    """Return what answers with an app's replies."""

    def answer(message: Message, context: Context) -> Outcome:
        reply = app(message, context)
        return outcome_of(message, reply)

    return answer


def outcome_of(message: Message, reply: Message) -> Outcome:
    """Return what a client did that sent a reply."""
    if reply.has_error():
        return Outcome(FAILED, reply.error.reason)
    records = dict(reply.content)
    told = records.pop(keys.METRICS, None)
    decision = None if told is None else told.get(keys.DECISION)
    kind = message.metadata.message_type
    what = DECISIONS[decision] if kind == "train" and decision in DECISIONS else _KINDS[kind]
    return Outcome(what, told=told, records=records)
