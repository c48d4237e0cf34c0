"""What messages name, checked: plug-ins, strategy, local rule; and one TRAIN that a client answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from client.equipment import rule_of
from client.participant import Participant
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings
from fedappeal.core.plugins import Allowed, Provenance, parse_section
from fedappeal.core.registry import REGISTRIES, STRATEGIES
from fedappeal.core.requirement import Measured
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays, model_of
from fedappeal.settings.config import ConfigError, Scalar, section
from fedappeal.tasks import MODELS, TASKS, find_task
from fedappeal.tasks.share import share_of

_FIND: dict[str, Callable[[str, Allowed], object]] = {registry.kind: registry.load for registry in REGISTRIES}
_FIND |= {TASKS.kind: find_task, MODELS.kind: MODELS.find}
"""By kind: returns the plug-in of a name, and nothing else that has one: what it is goes to the server."""
NO_STRATEGY = ClientSide()
"""Strategy of messages that name none: a trained model, and no report."""


def check_plugins(lines: str, allowed: Allowed) -> None:
    """Compare the server's plug-ins with those installed here.

    Args:
        lines: a line for each plug-in that is not fedappeal's: its kind, its name, its provenance, separated by tabs.
        allowed: what this client's owner allows.

    Raises:
        ConfigError: one that is not allowed, is not here, or is other code here; names both.
    """
    for line in filter(None, lines.split("\n")):
        kind, _, named_code = line.partition("\t")
        name, _, of_run = named_code.partition("\t")
        if kind not in _FIND:
            raise ConfigError(f"plug-in kind '{kind}' is not known to this client: {', '.join(_FIND)}")
        installed = str(Provenance.of(name, _FIND[kind](name, allowed)))
        if installed != of_run:
            raise ConfigError(f"{kind} differs: this client has {installed}, the run {of_run}")


def named_strategy(participant: Participant, config: Mapping[str, Scalar]) -> tuple[ClientSide, Mapping[str, Scalar]]:
    """Return the strategy that a message names, and what it tells about it.

    Where the run's own settings name the strategy, the message has to agree with them: what a client reports under
    one strategy could tell, beside what it reports under another, what it keeps to itself.

    Args:
        participant: the client.
        config: of the message.

    Raises:
        ConfigError: for another strategy or other settings than the run's; where the owner does not allow it.
    """
    name, run = str(config.get(keys.STRATEGY, "")), participant.config
    sent = section(config, name)
    if "strategy" not in run.model_fields_set:
        if not name:
            return NO_STRATEGY, {}
        kind = STRATEGIES.load(name, participant.node.allowed)
        allowed = set(kind.Settings.keys())
        algorithm = kind.of_run(run.with_plugins((f"{name}.{key}", sent[key]) for key in sent if key in allowed))
        return algorithm, {**algorithm.settings.as_config(), **sent}
    expected = participant.strategy
    if not name and not expected.reports and expected.LocalRule is None:
        return NO_STRATEGY, {}
    if name != expected.name:
        raise ConfigError(f"strategy = '{name}' is not allowed in this run: '{expected.name}'")
    settings = expected.settings.as_config()
    values = {key: sent[key] for key in settings if key in sent}
    if any(type(value) is not type(settings[key]) or value != settings[key] for key, value in values.items()):
        for key, value in parse_section(type(expected), {**settings, **values}).as_config().items():
            if value != settings[key]:
                raise ConfigError(f"{name}.{key} = {value} is not allowed in this run: {settings[key]}")
    return expected, {**settings, **sent}


def named_rule(participant: Participant, algorithm: ClientSide, config: Mapping[str, Scalar]) -> LocalRule:
    """Return the local rule that a message names, with its settings.

    Raises:
        ConfigError: for an unknown rule, one that the owner does not allow, or another than the strategy's own.
    """
    name = str(config.get(keys.LOCAL_RULE, algorithm.rule_name))
    return rule_of(participant.config, algorithm, name, config, participant.node.allowed)


@dataclass
class Turn:
    """One TRAIN that a client joined; see `fedappeal.core.local_rule.TrainingJob`.

    Attributes:
        participant: the client.
        content: the message's records.
    """

    participant: Participant
    content: RecordDict
    arrays: Arrays
    server_round: int
    run_key: str
    training: LocalTrainingSettings
    told: Mapping[str, Scalar]
    measured: Measured

    def __post_init__(self) -> None:
        client = self.participant
        self.seed, self.client_id, self.store = client.config.seed, client.client_id, client.store
        self.examples, self.device, self.model = client.data.counts[0], client.device, client.model

    @property
    def trainable(self) -> list[str]:
        """Names of the trainable parameters that travel, in the model's order."""
        return self.participant.trainable

    def received(self, name: str) -> Arrays:
        """Return a further model-shaped ArrayRecord of the message.

        Raises:
            ValueError: if there is none.
        """
        return self.participant.layout.unpack(model_of(self.content, name))

    def train(self, rule: LocalRule, start: Arrays | None = None) -> Arrays:
        """Return the local model that a rule trains; None, or no arrays: from the model that was sent."""
        if self.participant.parts.personal_trained and not rule.keeps_personal:
            raise ConfigError(
                f"share = '{share_of(self.participant.task)}' is not allowed with local-rule = '{rule.name}': all "
                "trained parameters have to travel"
            )
        arrays = {**self.arrays, **start} if start else self.arrays
        trained = self.participant.trained(arrays, rule, self.training, self.server_round, "batches")
        self.participant.keep_personal(trained, self.run_key, self.server_round)
        return {name: trained[name] for name in self.participant.layout.names}

    def gradient(self, arrays: Arrays, batch: NDArray[np.int64] | None) -> Arrays:
        """Return the gradient of the mean training loss of a model; None: of all examples."""
        return self.participant.gradient(arrays, batch)

    def pack(self, arrays: Arrays) -> ArrayRecord:
        """Return arrays as a record, in the form in which the model was sent."""
        layout = self.participant.layout
        sent = {name: arrays[name] for name in layout.names}
        return layout.pack(sent) if layout.is_packed(model_of(self.content)) else layout.named(sent)
