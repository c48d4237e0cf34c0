"""How much an author of a strategy sees."""

import inspect

from fedappeal.core.algorithm import ClientSide
from fedappeal.core.plugins import Plugin
from strategies.rounds.algorithm import Algorithm

MOST = 15


def methods(*classes: type) -> list[str]:
    """Public methods that these classes themselves define; properties are attributes."""
    own = {name: getattr(c, name) for c in classes for name in vars(c)}
    return sorted(n for n, m in own.items() if n[0] != "_" and (inspect.isfunction(m) or inspect.ismethod(m)))


def test_the_contract_of_an_algorithm_has_at_most_15_methods() -> None:
    assert len(methods(Algorithm, ClientSide)) <= MOST


def test_what_few_algorithms_decide_stands_apart_with_a_default_for_each() -> None:
    assert Algorithm().shared.influence == "off"
    facets = [c for c in Algorithm.__mro__ if c not in (Algorithm, ClientSide, Plugin, object)]
    assert {facet.__name__ for facet in facets} == {
        "Attacks", "Influence", "PersonalModels", "Priority", "Privacy", "Survey",
    }  # fmt: skip
    assert not set(methods(*facets)) & set(methods(Algorithm, ClientSide))
