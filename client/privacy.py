"""Flower's client mods around local training: clipping, and noise for local differential privacy.

Only the model of a joined reply is touched, never its metrics. What this protects, and what it does not, is in
docs/privacy.md.
"""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore.differential_privacy import compute_clip_model_update, get_norm

from client.participant import Participant
from client.state import Record, Store
from client.training import TRAININGS
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError
from fedappeal.protocol.draws import draw_seed
from fedappeal.protocol.packing import Layout, content_hash, view

_one_at_a_time = threading.Lock()


def protected(participant: Participant, rule: str, train: ClientAppCallable) -> ClientAppCallable:
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
    if rule in TRAININGS:
        raise ConfigError(
            f"clipping-norm = {norm:g} is not allowed with local-rule = '{rule}': "
            "a reply is not one trained model (0)"
        )
    if (whole := _not_floating(participant.layout)) is not None:
        raise ConfigError(
            f"clipping-norm = {norm:g} is not allowed with this model: '{whole}' is not floating point (0)"
        )

    def clip(message: Message, context: Context) -> Message:
        reply = train(message, context)
        sent, own = _model(message), _model(reply)
        if _update_norm(own, sent) > norm:  # one inside the norm stays as it is, to the bit
            clipped = [view(array) for array in own.values()]
            compute_clip_model_update(clipped, [view(sent[name]) for name in own], norm)
            reply.content[keys.ARRAYS] = ArrayRecord(dict(zip(own, map(Array, clipped), strict=True)))
        return reply

    def clip_and_add_noise(message: Message, context: Context) -> Message:
        reply = train(message, context)
        sent, own = _model(message), _model(reply)
        if _update_norm(own, sent) == 0:  # Flower's mod divides by it
            reply.content[keys.ARRAYS] = own = _nudged(own)
        # By the update, not by the question: were the data to change between two of them, equal noise would cancel.
        seed = draw_seed(
            config.seed,
            f"privacy/{noise_key(participant.store)}/{content_hash(own)}",
            client=participant.client_id,
            server_round=int(message.content[keys.CONFIG][keys.SERVER_ROUND]),  # type: ignore[arg-type]
        )
        mod = LocalDpMod(norm, config.dp_sensitivity, epsilon, config.dp_delta)
        with _numpy_seeded(seed):
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


def _model(message: Message) -> ArrayRecord:
    record = message.content[keys.ARRAYS]
    assert isinstance(record, ArrayRecord)
    return record


def _update_norm(own: ArrayRecord, sent: ArrayRecord) -> float:
    return get_norm([np.subtract(view(own[name]), view(sent[name])) for name in own])


def _nudged(model: ArrayRecord) -> ArrayRecord:
    """Return the model with its first value moved by a millionth, or by the least that changes it."""
    arrays = {name: view(array).copy() for name, array in model.items()}
    first = next(iter(arrays.values())).reshape(-1)
    first[0] += max(1e-6, np.spacing(abs(first[0])))
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


@contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, which Flower's noise is drawn from, and put it back afterwards."""
    with _one_at_a_time:
        before = np.random.get_state()
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
        try:
            yield
        finally:
            np.random.set_state(before)
