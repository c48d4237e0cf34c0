"""What owner and run both may choose: a client's policy and requirement."""

from client.participation.policy import Policy
from client.requirement import Fixed, RequirementKind
from client.settings import NodeSettings
from fedappeal.protocol.config import RunConfig
from fedappeal.protocol.plugins import PluginSettings, parse_section
from strategies.registry import POLICIES, REQUIREMENTS


def policy_kind(config: RunConfig, node: NodeSettings, name: str) -> tuple[type[Policy], PluginSettings]:
    """Return a policy's class and settings: those of the owner, and of the run where the run names the policy.

    Args:
        config: the run's settings.
        node: the owner's.
        name: the policy.

    Raises:
        ConfigError: for a policy that is not known or not allowed, or a setting of it.
    """
    if node.participation:
        kind = POLICIES.load(name)  # named by the owner
        return kind, parse_section(kind, node.own_section(kind.name))
    kind = POLICIES.load(name, node.allowed)
    return kind, parse_section(kind, {**config.section(kind.name), **node.own_section(kind.name)})


def requirement_kind_of(config: RunConfig, node: NodeSettings) -> RequirementKind:
    """Return where rho_k comes from: the owner's number, else the run's setting.

    Raises:
        ConfigError: for a kind that is not known or not allowed, or a setting of it.
    """
    if node.fixed_requirement is not None:
        return Fixed(Fixed.Settings.parse({"loss": node.fixed_requirement}))
    kind = REQUIREMENTS.load(config.requirement, node.allowed)
    return kind(parse_section(kind, config.section(kind.name)))
