"""Flower's client mods around local training: clipping, and noise for local differential privacy.

Only the model of a joined reply is touched, never its metrics. What this protects, and what it does not, is in
docs/privacy.md.
"""

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

from client.participant import Participant
from client.state import Record, Store
from client.training.rule import LocalRule
from fedappeal.flower.privacy import ClientCall, NDArray, clip_update, local_dp_mod, update_norm
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError
from fedappeal.protocol.draws import draw_seed
from fedappeal.protocol.packing import Layout, content_hash, model_of, view


def protected(participant: Participant, rule: LocalRule, train: ClientCall) -> ClientCall:
    """Return local training with the run's privacy settings around it.

    Args:
        participant: the client.
        rule: the local rule that TRAIN asks for.
        train: trains and makes the reply, whose model has the arrays of the one that was sent.

    Raises:
        ConfigError: where the settings do not go with each other, with the rule, or with the model.
    """
    config = participant.config
    norm, epsilon = config.clipping_norm, config.dp_epsilon
    if not norm and not epsilon:
        return train
    if not norm:
        raise ConfigError(f"clipping-norm = 0 is not allowed with dp-epsilon = {epsilon:g}: more than 0")
    if not rule.sends_model:
        raise ConfigError(
            f"clipping-norm = {norm:g} is not allowed with local-rule = '{rule.name}': "
            "a reply is not one trained model (0)"
        )
    if (whole := _not_floating(participant.layout)) is not None:
        raise ConfigError(
            f"clipping-norm = {norm:g} is not allowed with this model: '{whole}' is not floating point (0)"
        )

    def clip(message: Message, context: Context) -> Message:
        reply = train(message, context)
        sent, own = model_of(message.content), model_of(reply.content)
        if _update_norm(own, sent) > norm:  # one inside the norm stays as it is, to the bit
            clipped = clip_update(_views(own, own), _views(sent, own), norm)
            reply.content[keys.ARRAYS] = ArrayRecord(dict(zip(own, map(Array, clipped), strict=True)))
        return reply

    def clip_and_add_noise(message: Message, context: Context) -> Message:
        reply = train(message, context)
        sent, own = model_of(message.content), model_of(reply.content)
        if _update_norm(own, sent) == 0:  # Flower's mod divides by it
            reply.content[keys.ARRAYS] = own = _nudged(own)
        told: Mapping[str, Any] = message.content[keys.CONFIG]
        # By the update, not by the question: were the data to change between two of them, equal noise would cancel.
        seed = draw_seed(
            config.seed,
            f"privacy/{noise_key(participant.store)}/{content_hash(own)}",
            client=participant.client_id,
            server_round=int(told[keys.SERVER_ROUND]),
        )
        mod = local_dp_mod(norm, config.dp_sensitivity, epsilon, config.dp_delta, seed)
        return mod(message, context, lambda *_: reply)

    return clip_and_add_noise if epsilon else clip


def noise_key(store: Store) -> str:
    """Return this client's secret for drawing noise, made on first use and kept.

    The server knows the run's seed, the client-id and the round: noise drawn from these alone it could draw as well,
    and take off.
    """
    if (record := store.read("noise-key")) is None:
        record = Record({"key": secrets.token_hex(16)})
        store.write("noise-key", record)
    return str(record.values["key"])


def _not_floating(layout: Layout) -> str | None:
    return next((name for name, _, dtype in layout.entries if not np.issubdtype(np.dtype(dtype), np.floating)), None)


def _update_norm(own: ArrayRecord, sent: ArrayRecord) -> float:
    return update_norm(_views(own, own), _views(sent, own))


def _views(model: ArrayRecord, names: Iterable[str]) -> list[NDArray]:
    return [view(model[name]) for name in names]


def _nudged(model: ArrayRecord) -> ArrayRecord:
    """Return the model with its first value moved by about a millionth."""
    arrays = {name: view(array).copy() for name, array in model.items()}
    first = next(iter(arrays.values())).reshape(-1)
    first[0] += max(1e-6, np.spacing(abs(first[0])))
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})
