"""State shared by all clients of a run with equal owner settings, and what owner and run choose for them.

docs/privacy.md says what a server still works out under each switch of `Disclosure`, measured by the attacks in
tests/hostile.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord

from client.data.cache import Cache, pick_device
from client.participation.behaviour import Mixture, check_parts, compose, parts_of
from client.requirement import Fixed, is_a_number, requirement_key
from client.settings import NodeSettings
from client.training.models import arrays_of
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings
from fedappeal.core.plugins import Allowed, PluginSettings, is_ours, parse_section
from fedappeal.core.policy import Policy
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.core.requirement import RequirementKind
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays, Layout, content_hash
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, section
from fedappeal.system import versions
from fedappeal.system.latest import Latest
from fedappeal.tasks.examples import ClientData

_LOSSES = frozenset({keys.LOSS, keys.TRAIN_LOSS, keys.ADAPTED_LOSS})
_OF_TRAIN_SPLIT = frozenset({keys.APPEALED_TRAIN, keys.APPEALED_HELD_OUT, keys.TRAIN_LOSS})
_APPEAL = "its strategy needs to know whether the model meets a client's requirement"
_ON_TRAINING = "its strategy asks how a model does on the training examples"
V = TypeVar("V")


@dataclass(frozen=True)
class Disclosure:
    """Permission of each kind of content in a client's replies.

    Attributes:
        run: the run's settings.
        node: the owner's.
    """

    run: RunConfig
    node: NodeSettings

    @property
    def loss(self) -> bool:
        """Whether the run asks for losses, and the owner allows them."""
        return self.run.report_loss and self.node.report_loss

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Check that a run can do without what stays here.

        Args:
            config: the roll call's.

        Raises:
            ConfigError: one line for the server: the run cannot.
        """
        needs = (keys.NEEDS_LOSS, keys.NEEDS_WEIGHT, keys.NEEDS_APPEAL, keys.NEEDS_TRAIN_SPLIT)
        self._check(*(bool(config.get(key, 0)) for key in needs))

    def check_train(self, algorithm: ClientSide) -> None:
        """Check that a strategy can do without what stays here, before its TRAIN is answered in any way.

        Raises:
            ConfigError: one line for the server: it cannot.
        """
        self._check(algorithm.needs_losses, algorithm.needs_weight, algorithm.needs_appeal)

    def check_split(self, split: str) -> None:
        """Check that an EVALUATE may be answered.

        Raises:
            ConfigError: one line for the server: it asks about training examples.
        """
        self._check(train_split=split in (keys.TRAIN_SPLIT, keys.HELD_OUT_SPLIT))

    def of_evaluation(self, metrics: Mapping[str, V]) -> dict[str, V]:
        """Return what of an EVALUATE's answer may leave the device."""
        if not self.node.answer_evaluate:
            return {keys.NUM_EXAMPLES: metrics[keys.NUM_EXAMPLES]}
        hidden: set[str] = set()
        if not self.loss:
            hidden |= _LOSSES
        if not self.node.answer_train_split:
            hidden |= _OF_TRAIN_SPLIT
        if not self.node.report_appeal:
            # The preferred model's figure is the global model's if and only if that one appeals: it tells as much.
            hidden |= {key for key in metrics if key in keys.APPEALS or key.startswith(keys.PREFERRED)}
        return {key: value for key, value in metrics.items() if key not in hidden}

    def _check(
        self, loss: bool = False, weight: bool = False, appeal: bool = False, train_split: bool = False
    ) -> None:
        """Compare what a run needs with what may be told."""
        node = self.node
        for setting, needed, allowed, reason in (
            ("report-loss", loss, self.loss, "its strategy needs the clients' losses"),
            ("report-weight", weight, node.report_weight, "its strategy needs what a client tells besides its model"),
            ("report-appeal", appeal, node.report_appeal, _APPEAL),
            ("answer-evaluate", train_split, node.answer_evaluate, _ON_TRAINING),
            ("answer-train-split", train_split, node.answer_train_split, _ON_TRAINING),
        ):
            if needed and not allowed:
                raise ConfigError(f"{setting} = False is not allowed in this run: {reason}")


def policy_maker(config: RunConfig, node: NodeSettings, name: str) -> Callable[[], Policy]:
    """Return what makes a policy: with settings of the owner, and of the run where the run names the policy.

    Args:
        config: the run's settings.
        node: the owner's.
        name: the policy, and its behaviours.

    Raises:
        ConfigError: for a policy that is not known or not allowed, or a setting of it.
    """
    parts = [_policy_part(config, node, part) for part in parts_of(name)]
    check_parts(name, [kind for kind, _ in parts])
    for kind, settings in parts:
        kind(settings).check()
    return lambda: compose([kind(settings) for kind, settings in parts])


def _policy_part(config: RunConfig, node: NodeSettings, name: str) -> tuple[type[Policy], PluginSettings]:
    """Return the class and settings of a policy or behaviour; errors as `policy_maker`."""
    if node.participation:
        kind = POLICIES.load(name)  # named by the owner
        return kind, parse_section(kind, node.own_section(kind.name))
    kind = POLICIES.load(name, node.allowed)
    of_run, of_owner = config.section(kind.name), node.own_section(kind.name)
    for key in kind.owner_alone:
        if of_run.get(key) and of_run[key] != of_owner.get(key):
            raise ConfigError(
                f"{kind.name}.{key} is not allowed in a run: it names a file of this device, which its owner does "
                f"(--set {kind.name}.{key}=...)"
            )
    return kind, parse_section(kind, {**of_run, **of_owner})


def requirement_kind_of(config: RunConfig, node: NodeSettings) -> RequirementKind:
    """Return where rho_k comes from: the owner's number, else the run's setting.

    Raises:
        ConfigError: for a kind that is not known or not allowed, or a setting of it.
    """
    if node.fixed_requirement is not None:
        return Fixed(Fixed.Settings.parse({"loss": node.fixed_requirement}))
    kind = REQUIREMENTS.load(config.requirement, node.allowed)
    return kind(parse_section(kind, config.section(kind.name)))


def rule_of(
    config: RunConfig, algorithm: ClientSide, name: str, message: Mapping[str, Scalar], allowed: Allowed
) -> LocalRule:
    """Return a local rule, with its settings.

    Args:
        config: the run's settings.
        algorithm: the strategy, whose own rule none may replace.
        name: the rule.
        message: the config of a message, which counts before the run's.
        allowed: what the owner allows.

    Raises:
        ConfigError: for an unknown rule, one that the owner does not allow, or another than the strategy's own.
    """
    strategys_rule = algorithm.LocalRule
    if strategys_rule is not None and name == strategys_rule.name:
        return strategys_rule(algorithm.settings)
    if strategys_rule is not None:
        raise ConfigError(
            f"local-rule = '{name}' is not allowed with strategy = '{algorithm.name}': '{strategys_rule.name}'"
        )
    kind = LOCAL_RULES.load(name, allowed)
    stands_under = kind.settings_name()
    return kind(parse_section(kind, {**config.section(stands_under), **section(message, stands_under)}))


class Equipment:
    """Task, model, policy and rules that clients of a run share; read-only.

    Attributes:
        discloses: what replies may tell.
        device: where clients train.
        task: the task.
        initial: w_0.
        parts: which of the model's arrays travel, and which stay.
        model: a model of the task on the device, for its structure: its values do not last.
        layout: layout of what travels.
        fingerprint: the task's.
        allowed: the packages whose code may run.
        introduction: what each client's answer to the roll call says.
        packed: returns what `pack` does, and remembers it of the latest model.
    """

    def __init__(self, config: RunConfig, node: NodeSettings, cache: Cache) -> None:
        """Load it.

        Args:
            config: the run's settings.
            node: the owner's settings.
            cache: holds what is loaded.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or do not allow what it names.
        """
        self._strategy: ClientSide = cache.strategy_of(config) or STRATEGIES.load(
            config.strategy, node.allowed
        ).of_run(config)
        self.discloses = Disclosure(config, node)
        self._mixture = Mixture.of_run(config, self._strategy.policy)
        self._policy_maker = lru_cache(maxsize=None)(lambda name: policy_maker(config, node, name))
        self._seed, self._owners_policy = config.seed, node.participation
        self._requirement_kind = requirement_kind_of(config, node)
        self.device = pick_device(node.device)
        self.task = cache.task(config.task_settings(), node.data_dir, node.allowed)
        self.initial, self.parts = cache.initial(self.task, config.seed), cache.parts(self.task, config.seed)
        self.model = cache.scratch_model(self.task, config.seed, self.device)
        self.layout = Layout.of(arrays_of(self.initial, self.parts.shared))
        self.fingerprint = self.task.fingerprint
        self._run_settings, self.allowed = config, node.allowed
        facts = {keys.TASK: config.task, keys.FINGERPRINT: self.fingerprint, keys.VERSION: versions.FEDAPPEAL}
        self.introduction = ConfigRecord({**facts, keys.PROTOCOL_VERSION: keys.PROTOCOL})
        kind = self._requirement_kind
        self._requirement_key = lru_cache(maxsize=1)(
            lambda data, initial, client: requirement_key(
                kind, config, self.fingerprint, data, self.layout.hash, initial, client
            )
        )
        self.packed = Latest(self.pack)

    def pack(self, arrays: Arrays) -> tuple[ArrayRecord, str]:
        """Return what travels of a model, packed, and its content hash."""
        record = self.layout.pack({name: arrays[name] for name in self.layout.names})
        return record, content_hash(record)

    @cached_property
    def run_rule(self) -> LocalRule:
        """The local rule that the run's own settings name; for checks: a client that trains has one of its own.

        Raises:
            ConfigError: as `client.equipment.rule_of`.
        """
        rule_name = self._run_settings.local_rule
        name = self._strategy.rule_name if rule_name == "auto" else rule_name
        return rule_of(self._run_settings, self._strategy, name, {}, self.allowed)

    @cached_property
    def run_training(self) -> LocalTrainingSettings:
        """The run's own settings of local training."""
        return LocalTrainingSettings.of(self._run_settings.as_config())

    def requirement_key(self, data: ClientData, initial: str, client: str) -> str:
        """Return the name under which a client's requirement is stored; a number's is found once for all clients.

        Args:
            data: the client's.
            initial: content hash of w_0.
            client: the client-id.
        """
        fixed = ("", "", "") if is_a_number(self._requirement_kind) else (data.fingerprint, initial, client)
        return self._requirement_key(*fixed)

    def strategy(self) -> ClientSide:
        """Return a client's strategy; a copy of one that does not come with fedappeal: it may remember in itself."""
        return self._strategy if is_ours(type(self._strategy)) else copy.deepcopy(self._strategy)

    def policy(self, client_id: str) -> Policy:
        """Return a client's policy: the owner's, else the run's; an object of the client's own.

        Raises:
            ConfigError: for a policy that is not known or not allowed, or a setting of it.
        """
        return self._policy_maker(self._owners_policy or self._mixture.of(self._seed, client_id))()

    def requirement_kind(self) -> RequirementKind:
        """Return where rho_k comes from; an object of the client's own."""
        return type(self._requirement_kind)(self._requirement_kind.settings)
