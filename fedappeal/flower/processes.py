"""What starting Flower's processes needs: environment variables, lean imports, and whether a port is taken."""

from collections.abc import Mapping
from typing import Any

from fedappeal.system.tuning import import_beside

QUIET: Mapping[str, str] = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Environment in which Flower sends nothing out."""


def import_without_server() -> None:
    """Import Flower's common modules without FastAPI and SQLAlchemy.

    Only a SuperLink uses these.

    Half of what importing Flower costs is these two. Flower takes the numbers of HTTP's answers from the one, and
    loads the other for a grid that lives in a SuperLink's process. Requests speaks to Flower's hub, and httpx's
    command draws by Rich: no process here does either.
    """
    from starlette import status

    stand_ins: dict[str, dict[str, object]] = {
        "fastapi": {"status": status},
        "flwr.supercore.error.http": {"BearerAuthenticationError": Exception, "http_error_translator": None},
        "flwr.superlink.grid.inmemory_grid": {"InMemoryGrid": None},
        "requests": {"RequestException": OSError},
        "httpx._main": {"main": lambda: None},
    }
    import_beside(stand_ins, "flwr.supercore.error", "flwr.superlink.grid")


def replace_name(module: Any, name: str, value: object) -> None:
    """Replace a name in a Flower module; AttributeError if it has been renamed."""
    getattr(module, name)
    setattr(module, name, value)


def port_is_taken(log: bytes) -> bool:
    """Whether a SuperLink's log says that another process has one of its ports."""
    return b"already in use" in log
