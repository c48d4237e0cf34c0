"""An option of `fedappeal client limits` for each of an owner's limits."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

import typer

from client.limits.limits import Limits


def with_limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each limit.

    Args:
        command: takes its own options by keyword, and the given limits as ``given``, by kebab-case key.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "given"]
    units = Limits.units()
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(
                None,
                _option(name, field.default),
                help=f"{field.description}{_in(units[name.replace('_', '-')])}",
                show_default=_shown(field.default),
                rich_help_panel="Limits",
            ),
            annotation=(get_args(field.annotation) or (field.annotation,))[0] | None,
        )
        for name, field in Limits.model_fields.items()
    ]

    def run(**given: Any) -> None:
        limits = {name: given.pop(name) for name in Limits.model_fields}
        set_here = {name.replace("_", "-"): value for name, value in limits.items() if value is not None}
        command(given=set_here, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    both = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *parameters]
    run.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in both}
    return run


def _option(name: str, default: object) -> str:
    kebab = name.replace("_", "-")
    return f"--{kebab}/--no-{kebab}" if isinstance(default, bool) else f"--{kebab}"


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _shown(default: float | str | bool) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return default or "always" if isinstance(default, str) else f"{default:g}"
