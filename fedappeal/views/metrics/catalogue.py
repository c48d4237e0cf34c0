"""The catalogue of metrics: ``catalogue.toml`` says what each is."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.registry import RestrictedRegistry

_CATALOGUE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
REASONS: Mapping[str, str] = _CATALOGUE["reasons"]
"""Patterns of reasons for which a reply is left out or a client refused, by kind; the first that fits counts."""


class ReadMetrics(CollectorRegistry):
    """Metrics that are read when they are asked for."""

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """Return the metrics of these names (``?name[]=NAME``), read like all."""
        registry = CollectorRegistry(auto_describe=True)
        registry.register(self)
        return registry.restricted_registry(names)


def metrics_in(registry: CollectorRegistry, part: str) -> dict[str, Any]:
    """Return the metrics of a part of the catalogue by name, in a registry."""
    return {
        name: kind(f"fedappeal_{name}", text, labels, registry=registry)
        for kind, names in ((Gauge, _CATALOGUE[part]["gauges"]), (Counter, _CATALOGUE[part]["counters"]))
        for name, (text, *labels) in names.items()
    }
