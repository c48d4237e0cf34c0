"""Which strategies a run can name, and how each is made from the run's settings."""

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedappeal.protocol.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from strategies.shared import Shared
    from strategies.volunteers import VolunteerStrategy


# Each imports its own module: naming the strategies must not take the seconds that importing Flower takes.
def _fedavg(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.fedavg import FedAvg

    return FedAvg(**shared)


def _maxfl(config: RunConfig, shared: "Shared") -> "VolunteerStrategy":
    from strategies.maxfl import MaxFL

    return MaxFL(server_lr=config.server_lr, stabilizer=config.stabilizer, tuning_steps=config.tuning_steps, **shared)


STRATEGIES: dict[str, Callable[[RunConfig, "Shared"], "VolunteerStrategy"]] = {"fedavg": _fedavg, "maxfl": _maxfl}


def check_strategy(name: str) -> None:
    """Check that a strategy exists.

    Raises:
        ConfigError: if it does not; names those that do.
    """
    if name not in STRATEGIES:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise ConfigError(f"strategy = '{name}' is not allowed: {', '.join(STRATEGIES)}{hint}")


def build_strategy(config: RunConfig) -> "VolunteerStrategy":
    """Make the run's strategy.

    Raises:
        ConfigError: for an unknown name or a setting that is not allowed.
    """
    check_strategy(config.strategy)
    shared: Shared = {
        "clients_per_round": config.clients_per_round or None,
        "min_available_nodes": config.resolved_min_available_nodes,
        "start_timeout": config.start_timeout,
        "round_timeout": config.round_timeout,
        "seed": config.seed,
        "mandatory_rounds": None if config.mandatory_rounds < 0 else config.mandatory_rounds,
        "empty_pool": config.empty_pool,
        "evaluate_every": config.evaluate_every,
        "measure_leavers": config.measure_leavers,
    }
    return STRATEGIES[config.strategy](config, shared)
