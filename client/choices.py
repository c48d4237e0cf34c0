"""What owner and run both may choose: a client's policy and requirement."""

from client.participation.mixture import Mixture
from client.participation.policy import Policy
from client.requirement import Fixed, RequirementKind
from client.settings import NodeSettings
from fedappeal.protocol.config import RunConfig
from fedappeal.protocol.plugins import parse_section
from strategies.registry import POLICIES, REQUIREMENTS
from strategies.rounds.algorithm import Algorithm


def policy_of(config: RunConfig, node: NodeSettings, strategy: Algorithm, client_id: str) -> Policy:
    """Return the owner's policy, else the run's, else what the strategy's paper assumes.

    Args:
        config: the run's settings.
        node: the owner's.
        strategy: the run's.
        client_id: on which the draw from a mixture depends.

    Raises:
        ConfigError: for a policy that is not known or not allowed, or a setting of it.
    """
    if name := node.participation:
        kind = POLICIES.load(name)  # named by the owner
        return kind(parse_section(kind, node.own_section(kind.name)))
    kind = POLICIES.load(Mixture.of_run(config, strategy.policy).of(config.seed, client_id), node.allowed)
    return kind(parse_section(kind, {**config.section(kind.name), **node.own_section(kind.name)}))


def requirement_kind_of(config: RunConfig, node: NodeSettings) -> RequirementKind:
    """Return where rho_k comes from: the owner's number, else the run's setting.

    Raises:
        ConfigError: for a kind that is not known or not allowed, or a setting of it.
    """
    if node.fixed_requirement is not None:
        return Fixed(Fixed.Settings.parse({"loss": node.fixed_requirement}))
    kind = REQUIREMENTS.load(config.requirement, node.allowed)
    return kind(parse_section(kind, config.section(kind.name)))
