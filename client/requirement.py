"""A client's requirement rho_k: what the global model must reach to appeal.

Where it comes from is a plug-in: ``solo`` (MaxFL, "Example of rho_k", section 3), ``fixed``, ``metric``. A number
that the client's owner has set goes before all of them. It is computed once and stored, so that a client that was
killed, or got a new node id, keeps the requirement it had.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal

from pydantic import Field

from fedappeal.core.local_rule import Store, StoredRecord
from fedappeal.core.plugins import PluginSettings
from fedappeal.core.requirement import METRIC, Requirement, RequirementKind, WarmUp, choose
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError, Count, Positive, RunConfig, Scalar


class Solo(RequirementKind):
    """The loss of a model that the client trains alone from w_0 (MaxFL, section 3).

    Where the client judges by held-out data, the solo model is the one of its path that is best on them: training on
    would overfit, and make the requirement an easy one. Its lowest loss is of data by which it was chosen; where the
    client cross-fits, each half of the data judges the model that the other chose (see `choose`).
    """

    name = "solo"
    trains = True

    class Settings(PluginSettings):
        """The kind's settings."""

        steps: Count = 100
        """solo steps behind rho_k"""
        effort: Literal["set", "equal"] = "set"
        """set: solo.steps; equal: as many steps as the client would train in the run"""
        learning_rate: Positive = 0.1
        """their learning rate"""

    def make(self, client: WarmUp) -> Requirement:
        """Train alone, and return the loss that this reaches."""
        settings = self.settings
        steps = settings.steps if settings.effort == "set" else client.federated_steps
        solo: Arrays
        if client.holds_out:
            looks, solo, lowest = [], {}, math.inf
            for model in client.path(steps, settings.learning_rate):
                looks.append(client.look(model))
                if (loss := looks[-1].whole.loss) < lowest:
                    lowest, solo = loss, model
            # A training that diverges is no requirement.
            rho = choose(looks)[1].loss if math.isfinite(loss) else loss
        else:
            solo = client.train(steps, settings.learning_rate)
            rho = client.train_loss(solo)
        return Requirement(rho, dict(solo), client.test_score(solo))


class Fixed(RequirementKind):
    """A loss, the same for every client."""

    name = "fixed"

    class Settings(PluginSettings):
        """The kind's settings."""

        loss: float = Field(1.0, allow_inf_nan=False)
        """rho_k"""

    def make(self, client: WarmUp) -> Requirement:
        """Return the number."""
        return Requirement(self.settings.loss)


class MetricReached(RequirementKind):
    """A value of the task's metric to reach, the same for every client."""

    name = "metric"
    of = METRIC

    class Settings(PluginSettings):
        """The kind's settings."""

        reach: float = Field(0.8, allow_inf_nan=False)
        """value to reach: at least, or at most where lower is better"""

    def make(self, client: WarmUp) -> Requirement:
        """Return the number."""
        return Requirement(self.settings.reach, of=METRIC)


def is_a_number(kind: RequirementKind) -> bool:
    """Whether a requirement is a number that its settings give, whatever the client holds."""
    return type(kind).make in (Fixed.make, MetricReached.make)


def checked_requirement(kind: RequirementKind, client: WarmUp) -> Requirement:
    """Return the requirement that a kind makes, checked.

    Args:
        kind: the kind, with its settings.
        client: what the kind may ask of its client.

    Raises:
        ConfigError: where rho_k is not a finite number, as after a warm-up that diverged.
    """
    requirement: object = kind.make(client)
    if not isinstance(requirement, Requirement):
        raise ConfigError(f"requirement {kind.name} returned {requirement!r}: a Requirement is allowed")
    if not isinstance(requirement.rho, int | float) or not math.isfinite(requirement.rho):
        hint = "; lower solo.learning-rate" if isinstance(kind, Solo) else ""
        raise ConfigError(
            f"requirement {kind.name} ended with rho_k = {requirement.rho!r}: it has to be finite{hint}"
        )
    return requirement


def requirement_key(
    kind: RequirementKind, config: RunConfig, task: str, data: str, layout: str, initial: str, client: str
) -> str:
    """Name under which a requirement is stored: a hash of all that it depends on.

    Args:
        kind: the kind, with its settings.
        config: the run's settings.
        task: the task's fingerprint.
        data: fingerprint of the client's own data; empty of a number, to which it does not matter.
        layout: hash of the model's layout.
        initial: hash of the initial model w_0.
        client: the client-id, on which the warm-up's minibatches depend.
    """
    training: Mapping[str, object] = {}
    if kind.trains:
        general = ("batch-size", "momentum", "weight-decay", "seed", "loss-mode")
        settings = config.as_config()
        training = {**{key: settings[key] for key in general}, "client": client, "initial": initial}
    own, more = kind.settings.as_config(), (config.judge_on,) if config.holds_out else ()
    if own.pop("effort", "set") == "equal":  # without it a requirement has the name that earlier versions gave it
        run = (
            config.scheduled_rounds,
            config.local_steps,
            config.local_epochs,
            config.clients_per_round,
            config.clients,
        )
        more = (*more, *map(str, run))
    text = repr((kind.name, own, training, task, data, layout, *more))
    return "requirement-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def read_requirement(store: Store, key: str) -> Requirement | None:
    """Return the stored requirement of that key.

    None where there is none. A damaged record counts as none, and the requirement is made again.
    """
    if (record := store.read(key)) is None:
        return None
    values = record.values
    try:
        rho, score, of = float(values["rho"]), float(values["solo-score"]), str(values["of"])
    except (KeyError, ValueError):  # of another kind of record
        return None
    return Requirement(rho, record.arrays, score, of) if math.isfinite(rho) else None


def stored_requirement(store: Store, key: str, compute: Callable[[], Requirement]) -> Requirement:
    """Return the stored requirement, or compute and store it.

    Raises:
        ConfigError: as `checked_requirement`.
    """
    if (stored := read_requirement(store, key)) is not None:
        return stored
    requirement = compute()
    shared = requirement.rho, requirement.solo_score, requirement.of
    store.write(key, _record_of(requirement) if requirement.solo else _shared_record(*shared))
    return requirement


def _record_of(requirement: Requirement) -> StoredRecord:
    values: dict[str, Scalar] = {"rho": requirement.rho, "solo-score": requirement.solo_score, "of": requirement.of}
    return StoredRecord(values, dict(requirement.solo))


@lru_cache(maxsize=64)
def _shared_record(rho: float, solo_score: float, of: str) -> StoredRecord:
    return _record_of(Requirement(rho, {}, solo_score, of))
