"""What run and owner decide for a client before any message: its strategy, policy, requirement, local rule."""

import copy
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType

from flwr.app import ArrayRecord, ConfigRecord

from client.learner import Learner
from client.limits.disclosure import Disclosure
from client.participation.behaviour import Mixture, check_parts, compose, parts_of
from client.requirement import Fixed, is_a_number, requirement_key
from client.settings import NodeSettings
from fedappeal.core.algorithm import ClientSide, of_run, rule_name
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import Allowed, PluginSettings, is_ours, parse_section
from fedappeal.core.policy import Policy
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.core.requirement import RequirementKind
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays, Layout, content_hash
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, section
from fedappeal.settings.rounds import AUTO
from fedappeal.system import versions
from fedappeal.system.last_result import LastResult


def policy_maker(config: RunConfig, node: NodeSettings, name: str) -> Callable[[], Policy]:
    """Return a function that makes a policy.

    Its settings are the owner's, and the run's where the run names the policy.

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
    config: RunConfig, algorithm: ClientSide, allowed: Allowed, message: Mapping[str, Scalar] = MappingProxyType({})
) -> LocalRule:
    """Return the local rule that a message names, else the run, else the strategy; with its settings.

    Args:
        config: the run's settings.
        algorithm: the strategy, whose own rule none may replace.
        allowed: what the owner allows.
        message: the config of a message, which counts before the run's.

    Raises:
        ConfigError: for an unknown rule, one that the owner does not allow, or another than the strategy's own.
    """
    strategys_rule = algorithm.LocalRule
    of_run = rule_name(algorithm) if config.local_rule == AUTO else config.local_rule
    name = str(message.get(keys.LOCAL_RULE, of_run))
    if strategys_rule is not None and name == strategys_rule.name:
        return strategys_rule(algorithm.settings)
    if strategys_rule is not None:
        raise ConfigError(
            f"local-rule = '{name}' is not allowed with strategy = '{algorithm.name}': '{strategys_rule.name}'"
        )
    kind = LOCAL_RULES.load(name, allowed)
    stands_under = kind.settings_name()
    return kind(parse_section(kind, {**config.section(stands_under), **section(message, stands_under)}))


class Terms:
    """The terms on which clients of equal settings take part in a run; read-only.

    Attributes:
        discloses: what replies may tell.
        allowed: the packages whose code may run.
        packed: returns what `pack` does, and remembers it of the latest model.
    """

    def __init__(self, config: RunConfig, node: NodeSettings, strategy: ClientSide | None = None) -> None:
        """Load the plug-ins.

        Args:
            config: the run's settings.
            node: the owner's settings.
            strategy: in place of the one that the settings name.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or do not allow what it names.
        """
        self._strategy: ClientSide = strategy or of_run(STRATEGIES.load(config.strategy, node.allowed), config)
        self.discloses = Disclosure(config, node)
        self._mixture = Mixture.of_run(config, self._strategy.policy)
        self._policy_maker = lru_cache(maxsize=None)(lambda name: policy_maker(config, node, name))
        self._config, self._owners_policy, self.allowed = config, node.participation, node.allowed
        self._requirement_kind = kind = requirement_kind_of(config, node)
        self._requirement_key = lru_cache(maxsize=1)(lambda *of: requirement_key(kind, config, *of))
        self.introduction = lru_cache(maxsize=1)(self._introduction)
        self.packed = LastResult(self.pack)

    def _introduction(self, fingerprint: str) -> ConfigRecord:
        """Return what each client's answer to the roll call says; not to be changed."""
        facts = {keys.TASK: self._config.task, keys.FINGERPRINT: fingerprint, keys.VERSION: versions.FEDAPPEAL}
        return ConfigRecord({**facts, keys.PROTOCOL_VERSION: keys.PROTOCOL})

    @staticmethod
    def pack(layout: Layout, arrays: Arrays) -> tuple[ArrayRecord, str]:
        """Return what travels of a model, packed, and its content hash."""
        record = layout.pack({name: arrays[name] for name in layout.names})
        return record, content_hash(record)

    @cached_property
    def rule(self) -> LocalRule:
        """The local rule that the run's own settings name.

        It is for checks: a client that trains has one of its own.

        Raises:
            ConfigError: as `rule_of`.
        """
        return rule_of(self._config, self._strategy, self.allowed)

    def requirement_key(self, learner: Learner, initial: str, client: str) -> str:
        """Return the name under which a client's requirement is stored; a number's is found once for all clients.

        Args:
            learner: the client's.
            initial: content hash of w_0.
            client: the client-id.
        """
        layout = learner.expects.hash
        if is_a_number(self._requirement_kind):  # to hash a client's data takes as long as to read them
            return self._requirement_key(learner.fingerprint, "", layout, "", "")
        return self._requirement_key(learner.fingerprint, learner.data_fingerprint, layout, initial, client)

    def strategy(self) -> ClientSide:
        """Return a client's strategy.

        One that does not come with fedappeal is copied: it may remember in itself.
        """
        return self._strategy if is_ours(type(self._strategy)) else copy.deepcopy(self._strategy)

    def policy(self, client_id: str) -> Policy:
        """Return a client's policy: the owner's, else the run's; an object of the client's own.

        Raises:
            ConfigError: for a policy that is not known or not allowed, or a setting of it.
        """
        return self._policy_maker(self._owners_policy or self._mixture.of(self._config.seed, client_id))()

    def requirement_kind(self) -> RequirementKind:
        """Return where rho_k comes from; an object of the client's own."""
        return type(self._requirement_kind)(self._requirement_kind.settings)
