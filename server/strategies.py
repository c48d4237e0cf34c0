"""Which strategies a run can name, and how each is made from the run's settings."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedappeal.protocol.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from strategies.shared import Shared
    from strategies.volunteers import VolunteerStrategy


# Each imports its own module: naming the strategies must not take the seconds that importing Flower takes.
def _fedavg(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.fedavg import FedAvg

    return FedAvg(**shared)


def _fedprox(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.fedprox import FedProx

    return FedProx(proximal_mu=config.proximal_mu, **shared)


def _maxfl(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.maxfl import MaxFL

    return MaxFL(server_lr=config.server_lr, stabilizer=config.stabilizer, tuning_steps=config.tuning_steps, **shared)


def _fedalign(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.fedalign import FedALIGN, epsilon_schedule

    return FedALIGN(
        epsilon=epsilon_schedule(
            config.epsilon_schedule, config.epsilon, config.rounds, config.epsilon_decay, config.epsilon_drop
        ),
        warmup_share=config.warmup_share,
        match_on=config.match_on,
        global_loss=config.global_loss,
        max_non_priority_weight=config.max_non_priority_weight or None,
        priority_ids=[name.strip() for name in config.priority_ids.split(",") if name.strip()],
        **shared,
    )


def _adagd(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.adagd import AdaGD
    from strategies.maxfl_adagd import MaxFLAdaGD

    made = MaxFLAdaGD if config.strategy == MaxFLAdaGD.name else AdaGD
    return made(
        step_size=config.step_size,
        precision=config.precision,
        slack=config.slack,
        on_missing=config.on_missing,
        **shared,
    )


def _scaffold(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.scaffold import Scaffold

    return Scaffold(server_lr=config.server_lr, **shared)


def _qfedavg(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.qfedavg import QFedAvg

    return QFedAvg(q=config.fairness_q, learning_rate=config.learning_rate, **shared)


def _mwfed(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.mwfed import MWFed

    return MWFed(local_steps=config.local_steps, **shared)


def _perfedavg(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.perfedavg import PerFedAvg

    return PerFedAvg(
        maml_learning_rate=config.maml_learning_rate,
        maml_order=config.maml_order,
        adaptation_steps=config.adaptation_steps,
        **shared,
    )


def _pfedme(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.pfedme import PFedMe

    return PFedMe(
        moreau_lambda=config.moreau_lambda,
        moreau_steps=config.moreau_steps,
        personal_learning_rate=config.personal_learning_rate,
        server_mixing=config.server_lr,
        **shared,
    )


@dataclass(frozen=True)
class Entry:
    """One strategy that a run can name.

    Attributes:
        build: makes it from the run's settings.
        needs_loss: whether it cannot do without the clients' losses.
        own_rule: whether it prescribes the local rule.
        one_model: whether a reply is one locally trained model, so that Flower's client mods can go around training.
        everybody: whether each round needs all clients.
        plain_steps: whether its local rule knows no momentum and no weight decay.
    """

    build: Callable[[RunConfig, "Shared"], "VolunteerStrategy"]
    needs_loss: bool = False
    own_rule: bool = False
    one_model: bool = True
    everybody: bool = False
    plain_steps: bool = False


STRATEGIES = {
    "maxfl": Entry(_maxfl),
    "fedalign": Entry(_fedalign, needs_loss=True),
    "adagd": Entry(_adagd, needs_loss=True, own_rule=True, one_model=False, everybody=True, plain_steps=True),
    "maxfl-adagd": Entry(_adagd, own_rule=True, one_model=False, everybody=True, plain_steps=True),
    "fedavg": Entry(_fedavg),
    "fedprox": Entry(_fedprox, own_rule=True),
    "scaffold": Entry(_scaffold, own_rule=True, one_model=False),
    "qfedavg": Entry(_qfedavg, needs_loss=True),
    "mwfed": Entry(_mwfed),
    "perfedavg": Entry(_perfedavg, own_rule=True, plain_steps=True),
    "pfedme": Entry(_pfedme, own_rule=True, plain_steps=True),
}


def check_strategy(name: str) -> None:
    """Check that a strategy exists.

    Raises:
        ConfigError: if it does not; names those that do.
    """
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise ConfigError(f"strategy = '{name}' is not allowed: {', '.join(STRATEGIES)}{hint}")


def check_settings(config: RunConfig) -> None:
    """Check the settings that only some strategies allow.

    Raises:
        ConfigError: for an unknown strategy, or a setting that it does not go with.
    """
    check_strategy(config.strategy)
    entry, name = STRATEGIES[config.strategy], config.strategy
    if entry.needs_loss and not config.report_loss:
        raise ConfigError(
            f"report-loss = False is not allowed with strategy = '{name}': it needs the clients' losses"
        )
    if entry.own_rule and config.local_rule != "auto":
        raise ConfigError(
            f"local-rule = '{config.local_rule}' is not allowed with strategy = '{name}': it has a rule of its own"
        )
    if entry.everybody and config.clients_per_round:
        raise ConfigError(
            f"clients-per-round = {config.clients_per_round} is not allowed with strategy = '{name}': "
            "every round needs all clients (0)"
        )
    for key, value in (("momentum", config.momentum), ("weight-decay", config.weight_decay)):
        if value and entry.plain_steps:
            raise ConfigError(
                f"{key} = {value:g} is not allowed with strategy = '{name}': its local rule has none (0)"
            )
    if name == "scaffold" and config.momentum:
        raise ConfigError(
            f"momentum = {config.momentum:g} is not allowed with strategy = 'scaffold': "
            "its control variates are means of plain gradients (0)"
        )
    if name in ("adagd", "maxfl-adagd") and config.loss_mode != "evaluation":
        raise ConfigError(
            f"loss-mode = '{config.loss_mode}' is not allowed with strategy = '{name}': "
            "its gradients are those of the loss in evaluation mode"
        )
    if name == "mwfed" and not config.local_steps:
        raise ConfigError(
            "local-steps = 0 is not allowed with strategy = 'mwfed': it shares out steps, not epochs (at least 1)"
        )
    for key, value in (("clipping-norm", config.clipping_norm), ("dp-epsilon", config.dp_epsilon)):
        if value and not entry.one_model:
            raise ConfigError(
                f"{key} = {value:g} is not allowed with strategy = '{name}': a reply is not one trained model (0)"
            )
    if name == "pfedme" and config.personal_learning_rate * config.moreau_lambda >= 2:
        raise ConfigError(
            f"personal-learning-rate = {config.personal_learning_rate:g} is not allowed with "
            f"moreau-lambda = {config.moreau_lambda:g}: less than {2 / config.moreau_lambda:g} (2 / lambda)"
        )
    if config.dp_epsilon and not config.clipping_norm:
        raise ConfigError(f"clipping-norm = 0 is not allowed with dp-epsilon = {config.dp_epsilon:g}: more than 0")


def build_strategy(config: RunConfig) -> "VolunteerStrategy":
    """Make the run's strategy.

    Raises:
        ConfigError: for an unknown name or a setting that is not allowed.
    """
    check_settings(config)
    appeals = config.resolved_participation == "appeal"  # no other policy knows rounds in which nobody opts out
    shared: Shared = {
        "clients_per_round": config.clients_per_round or None,
        "min_available_nodes": config.resolved_min_available_nodes,
        "start_timeout": config.start_timeout,
        "round_timeout": config.round_timeout,
        "seed": config.seed,
        "mandatory_rounds": (None if config.mandatory_rounds < 0 else config.mandatory_rounds) if appeals else 0,
        "empty_pool": config.empty_pool if appeals else "keep",
        "evaluate_every": config.evaluate_every,
        "measure_leavers": config.measure_leavers,
    }
    return STRATEGIES[config.strategy].build(config, shared)
