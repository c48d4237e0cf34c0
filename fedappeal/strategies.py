"""The strategies, for Flower's users: ``from fedappeal.strategies import MaxFL`` in place of Flower's FedAvg."""

from typing import Any

import strategies

__all__ = strategies.__all__  # a list of the registry's names


def __getattr__(name: str) -> Any:
    return getattr(strategies, name)
