"""The tables of docs/reference.md that are read off classes: strategies, policies and the like, an owner's limits.

    python -m tests.docs.tables

prints them; a test compares them with the page.
"""

from collections.abc import Iterator
from typing import Any

from client.limits.limits import Limits, shown_default
from client.participation.behaviour import Behaviour
from fedappeal.core.plugins import Registry
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.settings.model import fact

PAGES = {
    "maxfl": "[MaxFL](maxfl.md)",
    "fedalign": "[FedALIGN](fedalign.md)",
    "adagd": "[ADA-GD](adagd.md)",
    "maxfl-adagd": "[ADA-GD](adagd.md#under-maxfls-weights)",
    "fedavg": "",
    "fedprox": "[baselines](baselines.md#fedprox)",
    "fedadam": "[baselines](baselines.md#fedadam)",
    "fednova": "[baselines](baselines.md#fednova)",
    "scaffold": "[baselines](baselines.md#scaffold)",
    "fedau": "[baselines](baselines.md#fedau)",
    "oracle": "[baselines](baselines.md#oracle)",
    "mifa": "[baselines](baselines.md#mifa)",
    "qfedavg": "[baselines](baselines.md#q-ffl-q-fedavg)",
    "afl": "[baselines](baselines.md#afl)",
    "term": "[baselines](baselines.md#term)",
    "mwfed": "[baselines](baselines.md#mw-fed)",
    "ditto": "[personalised](personalised.md#ditto)",
    "perfedavg": "[personalised](personalised.md)",
    "pfedme": "[personalised](personalised.md)",
}


def strategies() -> Iterator[str]:
    """The rows of the table of strategies."""
    yield "| `--strategy` | | page |"
    yield "|---|---|---|"
    for name in STRATEGIES.built_in:
        yield f"| `{name}` | {STRATEGIES.load(name).summary_line()} | {PAGES[name]} |"


def policies() -> Iterator[str]:
    """The rows of the table of policies; behaviours have a page of their own."""
    yield from (
        row
        for row in _table("--participation", POLICIES)
        if not any(row.startswith(f"| `{name}` ") for name in behaviours())
    )


def behaviours() -> list[str]:
    """The names of the behaviours, which change policies."""
    return [name for name in POLICIES.built_in if issubclass(POLICIES.load(name), Behaviour)]


def requirements() -> Iterator[str]:
    """The rows of the table of requirements."""
    yield from _table("--requirement", REQUIREMENTS)


def local_rules() -> Iterator[str]:
    """The rows of the table of local rules."""
    yield "| `--local-rule` | | in `fedappeal simulate` |"
    yield "|---|---|---|"
    for name in LOCAL_RULES.built_in:
        rule = LOCAL_RULES.load(name)
        yield f"| `{name}` | {_escaped(rule.summary_line())} | {'batched' if rule.batched else 'sequential'} |"


def limits() -> Iterator[str]:
    """The rows of the table of an owner's limits."""
    yield "| limit | default | unit | |"
    yield "|---|---|---|---|"
    for key, field in Limits.by_key().items():
        yield f"| `{key}` | {shown_default(field.default)} | {fact(field, 'unit')} | {field.description} |"


def _table(option: str, registry: Registry[Any]) -> Iterator[str]:
    yield f"| `{option}` | |"
    yield "|---|---|"
    for name in registry.built_in:
        yield f"| `{name}` | {_escaped(registry.load(name).summary_line())} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for rows in (strategies(), policies(), requirements(), local_rules(), limits()):
        print("\n".join(rows), end="\n\n")
