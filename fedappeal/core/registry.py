"""The plug-ins that come with fedappeal, by kind and name, and how others are found; ``registry.toml`` lists them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedappeal.core.local_rule import LocalRule
from fedappeal.core.plugins import Registry
from fedappeal.core.policy import Policy
from fedappeal.core.requirement import RequirementKind

BUILT_IN: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""``module:Name`` by kind and name."""
STRATEGIES: Registry[Any] = Registry(
    "strategy", "fedappeal.strategies", "strategies.rounds.strategy:Strategy", BUILT_IN["strategy"]
)
LOCAL_RULES = Registry("local-rule", "fedappeal.local_rules", LocalRule, BUILT_IN["local-rule"])
POLICIES = Registry("participation", "fedappeal.policies", Policy, BUILT_IN["participation"])
REQUIREMENTS = Registry("requirement", "fedappeal.requirements", RequirementKind, BUILT_IN["requirement"])

REGISTRIES: tuple[Registry[Any], ...] = (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS)
"""All kinds of plug-ins but tasks."""
