"""What is done to an update before it leaves: clipping, and Flower's noise for local differential privacy.

Only the model of a joined reply is touched, never its metrics. What this protects, and what it does not, is in
docs/privacy.md.
"""

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from client.participant import Participant
from client.settings import NodeSettings
from client.state.store import changing_records
from fedappeal.core.local_rule import LocalRule, Store, StoredRecord
from fedappeal.flower.privacy import NDArray, clip_and_noise, clip_update, update_norm
from fedappeal.protocol import keys
from fedappeal.protocol.draws import draw_seed
from fedappeal.protocol.packing import Layout, content_hash, model_of, view
from fedappeal.settings.config import ConfigError, RunConfig

DELTA = 1e-5
"""The delta behind an owner's epsilon."""


@dataclass(frozen=True)
class PrivacyNoise:
    """Gaussian noise on every parameter; an epsilon of 0 is none."""

    epsilon: float
    delta: float
    sensitivity: float

    @property
    def deviation(self) -> float:
        """Its standard deviation (Dwork and Roth, theorem A.1)."""
        if not self.epsilon:
            return 0.0
        return self.sensitivity * math.sqrt(2 * (math.log(1.25) - math.log(self.delta))) / self.epsilon


@dataclass(frozen=True)
class Protection:
    """Clipping and noise around local training: the stricter of the run's and the owner's.

    Attributes:
        norm: most l2 norm of an update; 0: any.
        noise: added to the clipped update.
        by: whose the norm is, for messages.
    """

    norm: float
    noise: PrivacyNoise
    by: str = ""

    @classmethod
    def of(cls, config: RunConfig, node: NodeSettings) -> Self:
        """Return the protection of a client in a run."""
        norm = min(filter(None, (config.clipping_norm, node.clipping_norm)), default=0.0)
        # The run's sensitivity is the server's word; two updates of this norm are at most twice the norm apart.
        noises = [
            PrivacyNoise(config.dp_epsilon, config.dp_delta, config.dp_sensitivity),
            PrivacyNoise(node.dp_epsilon, DELTA, 2 * norm),
        ]
        owns = bool(node.clipping_norm) and norm != config.clipping_norm
        return cls(norm, max(noises, key=lambda noise: noise.deviation), " of this client's owner" if owns else "")

    def check(self, rule: LocalRule, layout: Layout) -> None:
        """Check that a local rule's replies can be protected.

        Raises:
            ConfigError: where the settings do not go with each other, with the rule, or with the model.
        """
        subject = f"clipping-norm = {self.norm:g}{self.by} is not allowed"
        if not self.norm:
            if self.noise.epsilon:
                raise ConfigError(f"{subject} with dp-epsilon = {self.noise.epsilon:g}: more than 0")
            return
        if not rule.sends_model:
            raise ConfigError(f"{subject} with local-rule = '{rule.name}': a reply is not one trained model (0)")
        whole = (name for name, _, dtype in layout.entries if not np.issubdtype(np.dtype(dtype), np.floating))
        if (name := next(whole, None)) is not None:
            raise ConfigError(f"{subject} with this model: '{name}' is not floating point (0)")


def protected_records(
    participant: Participant, message: Message, update: Mapping[str, ArrayRecord]
) -> Mapping[str, ArrayRecord]:
    """Return the records of a joined reply as the run's and the owner's privacy settings let them leave.

    Args:
        participant: the client, whose local rule was checked.
        message: what was asked, with the model that was sent.
        update: the records; the model has the arrays of the one that was sent.

    Raises:
        ConfigError: Flower's noise does not go with the message.
    """
    config, protection = participant.config, Protection.of(participant.config, participant.node)
    norm, noise = protection.norm, protection.noise
    if not norm:
        return update
    sent, local = model_of(message.content), update[keys.ARRAYS]
    length = update_norm(_views(local, local), _views(sent, local))
    if not math.isfinite(length):
        # Of NaN alone, for nothing would bound the other values: a server can send an infinite bias, of a unit that
        # is never active.
        return {keys.ARRAYS: ArrayRecord({n: Array(np.full_like(view(a), np.nan)) for n, a in local.items()})}
    if noise.epsilon:
        settings: Mapping[str, Any] = message.content[keys.CONFIG]
        if length == 0:  # Flower's mod divides by it
            local = _nudged_model(local)
        # By the update, not by the question: were the data to change between two, equal noise would cancel.
        seed = draw_seed(
            config.seed,
            f"privacy/{noise_key(participant.store)}/{content_hash(local)}",
            client=participant.client_id,
            server_round=int(settings[keys.SERVER_ROUND]),
        )
        reply = Message(RecordDict({keys.ARRAYS: local}), reply_to=message)
        noised = clip_and_noise(message, reply, norm, noise.sensitivity, noise.epsilon, noise.delta, seed)
        if noised.has_error():
            raise ConfigError(noised.error.reason)
        return {keys.ARRAYS: model_of(noised.content)}
    if length > norm:  # one inside the norm stays as it is, to the bit
        clipped = clip_update(_views(local, local), _views(sent, local), norm)
        return {keys.ARRAYS: ArrayRecord(dict(zip(local, map(Array, clipped), strict=True)))}
    return update


def noise_key(store: Store) -> str:
    """Return this client's secret for drawing noise, made on first use and kept.

    The server knows the run's seed, the client-id and the round: noise drawn from these alone it could draw as well,
    and take off.
    """
    with changing_records(store):
        if (record := store.read("noise-key")) is None:
            record = StoredRecord({"key": secrets.token_hex(16)})
            store.write("noise-key", record)
        return str(record.values["key"])


def _views(model: ArrayRecord, names: Iterable[str]) -> list[NDArray]:
    return [view(model[name]) for name in names]


def _nudged_model(model: ArrayRecord) -> ArrayRecord:
    """Return the model with its first value moved by about a millionth."""
    arrays = {name: view(array).copy() for name, array in model.items()}
    first = next(iter(arrays.values())).reshape(-1)
    first[0] += max(1e-6, np.spacing(abs(first[0])))
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})
