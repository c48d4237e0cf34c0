"""A client's requirement rho_k: the training loss that the global model must beat to appeal.

``solo`` (MaxFL, "Example of rho_k", section 3): the client trains a model of its own for a few warm-up steps
from the run's initial model ``w_0``; ``rho_k`` is that solo model's training loss. ``fixed``: a number. A number
that the client's owner has set goes before both. Computed once and stored,
so a client that was killed, or got a new node id, keeps the requirement it had.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client.state import Record, Store
from fedappeal.protocol.config import RunConfig

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Requirement:
    """What a client requires.

    Attributes:
        rho: the training loss to beat, finite.
        solo: the solo model's arrays by name; empty where the requirement is a fixed number.
        solo_accuracy: its accuracy on the client's test data; NaN where there is none.
    """

    rho: float
    solo: Arrays
    solo_accuracy: float

    @classmethod
    def fixed(cls, rho: float) -> "Requirement":
        """Return a requirement that is a number, without a solo model."""
        return cls(rho, {}, float("nan"))


def requirement_settings(config: RunConfig, owners: float | None) -> RunConfig:
    """Return the settings that a client's requirement follows: a number its owner has set goes before the run's."""
    if owners is None:
        return config
    return config.model_copy(update={"requirement": "fixed", "fixed_requirement": owners})


def requirement_key(config: RunConfig, task: str, data: str, layout: str, initial: str, client: str) -> str:
    """Name under which a requirement is stored: a hash of all that it depends on.

    Args:
        config: the settings, see `requirement_settings`; only those of the requirement count.
        task: the task's fingerprint.
        data: fingerprint of the client's own data.
        layout: hash of the model's layout.
        initial: hash of the initial model w_0.
        client: the client-id, on which the warm-up's minibatches depend.
    """
    settings: tuple[object, ...] = (config.requirement, config.fixed_requirement)
    if config.requirement == "solo":
        settings = (
            config.requirement,
            config.warmup_steps,
            config.warmup_learning_rate,
            config.batch_size,
            config.momentum,
            config.weight_decay,
            config.seed,
            client,
            initial,
        )
        if config.loss_mode != "evaluation":  # the usual mode is left out: what is stored by then keeps its name
            settings += (config.loss_mode,)
    text = repr((settings, task, data, layout))
    return "requirement-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def read_requirement(store: Store, key: str) -> Requirement | None:
    """Return the stored requirement of that key, or None."""
    if (record := store.read(key)) is None:
        return None
    return Requirement(float(record.values["rho"]), dict(record.arrays), float(record.values["solo-accuracy"]))


def stored_requirement(store: Store, key: str, compute: Callable[[], Requirement]) -> Requirement:
    """Return the stored requirement, or compute and store it.

    Raises:
        ValueError: if the computed rho_k is not finite (the warm-up diverged).
    """
    if (stored := read_requirement(store, key)) is not None:
        return stored
    requirement = compute()
    if not np.isfinite(requirement.rho):
        raise ValueError(f"the requirement's warm-up ended with loss {requirement.rho}; lower warmup-learning-rate")
    store.write(key, Record({"rho": requirement.rho, "solo-accuracy": requirement.solo_accuracy}, requirement.solo))
    return requirement
