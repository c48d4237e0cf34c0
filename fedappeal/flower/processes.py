"""What starting Flower's processes needs: environment variables, and what their log says of a taken port."""

from collections.abc import Mapping
from typing import Any

QUIET: Mapping[str, str] = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Environment in which Flower sends nothing out."""

PROMPT: Mapping[str, str] = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
"""Environment in which a SuperLink starts a ServerApp within 0.25 s of a run's submission (default 1 s)."""


def replace_name(module: Any, name: str, value: object) -> None:
    """Replace what a module of Flower's calls by a name; AttributeError where Flower has renamed it."""
    getattr(module, name)
    setattr(module, name, value)


def port_is_taken(log: bytes) -> bool:
    """Whether a SuperLink's log says that it ended because another process has one of its ports."""
    return b"already in use" in log
