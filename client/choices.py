"""A client's policy, requirement and local rule, as its owner and the run choose them."""

from collections.abc import Callable, Mapping

from client.participation.behaviour import check_parts, compose, parts_of
from client.requirement import Fixed
from client.settings import NodeSettings
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import Allowed, PluginSettings, parse_section
from fedappeal.core.policy import Policy
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS
from fedappeal.core.requirement import RequirementKind
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, section


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
