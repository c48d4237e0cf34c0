"""The messages that clients are sent in a round."""

from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedappeal.flower.messages import copy_for_node
from fedappeal.protocol import keys
from fedappeal.settings.config import Scalar
from strategies.rounds.exchange.exchange import Addressed
from strategies.rounds.exchange.members import Member
from strategies.rounds.flower_keywords import FlowerKeywords
from strategies.rounds.round import Instructions, Round

OUR_NAMES = FlowerKeywords()
"""The names of records where an author gives none."""


def train_messages(
    round: Round, members: Sequence[Member], config: Mapping[str, Scalar], instructions: Instructions, ttl: float
) -> list[Addressed]:
    """Return one TRAIN message for each client.

    Args:
        round: the round, with the global model.
        members: the clients.
        config: general settings; those of the instructions count before them, but for the round's own keys.
        instructions: what the strategy tells.
        ttl: seconds until the deadline.
    """
    of_round = {keys.SERVER_ROUND: round.number, keys.MANDATORY: int(round.record.mandatory)}
    to_all = {**config, **of_round, **instructions.all, **of_round}
    arrays_key, config_key = round.flower.arrayrecord_key, round.flower.configrecord_key
    content = RecordDict({arrays_key: round.model, **instructions.records, config_key: ConfigRecord(dict(to_all))})
    messages = _messages(members, MessageType.TRAIN, content, to_all, ttl)
    for member, message in messages:
        if to_one := instructions.each.get(member.client_id):
            message.content[config_key] = ConfigRecord({**to_all, **to_one})
    return messages


def evaluate_messages(
    members: Sequence[Member],
    arrays: ArrayRecord,
    config: Mapping[str, Scalar],
    ttl: float,
    names: FlowerKeywords = OUR_NAMES,
) -> list[Addressed]:
    """Return one EVALUATE message for each client; ``config``: theirs, ``ttl``: seconds; names as in TRAIN."""
    content = RecordDict({names.arrayrecord_key: arrays, names.configrecord_key: ConfigRecord(dict(config))})
    return _messages(members, MessageType.EVALUATE, content, config, ttl)


def _messages(
    members: Sequence[Member], kind: str, content: RecordDict, config: Mapping[str, Scalar], ttl: float
) -> list[Addressed]:
    """Return one message for each client, each with a copy of the content."""
    group, ttl = str(config[keys.SERVER_ROUND]), max(ttl, 0.001)
    first = [Message(content, member.node_id, kind, ttl=ttl, group_id=group) for member in members[:1]]
    return [(member, copy_for_node(first[0], member.node_id)) for member in members]
