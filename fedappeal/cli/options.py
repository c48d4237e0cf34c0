"""Command-line options made from the run configuration: one option a key, under the same name."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import typer

from fedappeal.protocol.config import RunConfig

HIDDEN = frozenset({"resume"})
"""Keys that commands set themselves."""


def with_run_options(command: Callable[..., None], hide: frozenset[str] = HIDDEN) -> Callable[..., None]:
    """Give a command an option for each key of the run configuration.

    Args:
        command: takes its own options by keyword, and the given settings as ``settings``: a dict under
            kebab-case keys that holds only what the user wrote.
        hide: keys without an option.

    Returns:
        A function whose signature typer can read.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
    fields = {name: field for name, field in RunConfig.model_fields.items() if name not in hide}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(
                None,
                f"--{name.replace('_', '-')}"
                + (f"/--no-{name.replace('_', '-')}" if field.annotation is bool else ""),
                help=_help(field.description or "", field.annotation),
                show_default=str(field.default) if field.default != "" else False,
                rich_help_panel="Task" if name in _TASK else "Run",
            ),
            annotation=_plain(field.annotation) | None,
        )
        for name, field in fields.items()
    ]

    def run(**given: Any) -> None:
        settings = {name.replace("_", "-"): given.pop(name) for name in list(fields) if given.get(name) is not None}
        command(settings=settings, **{k: v for k, v in given.items() if k not in fields})

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + parameters
    )
    run.__annotations__ = {p.name: p.annotation for p in [*own, *parameters]}
    return run


def _task_keys() -> frozenset[str]:
    from fedappeal.protocol.config import TaskSettings

    return frozenset(TaskSettings.model_fields)


_TASK = _task_keys()


def _plain(annotation: Any) -> Any:
    """Return the plain type behind an annotated one, for typer; the run configuration checks the bounds."""
    if get_origin(annotation) is Literal:
        return str
    return get_args(annotation)[0] if get_args(annotation) else annotation


def _help(text: str, annotation: Any) -> str:
    return f"{text} ({' | '.join(get_args(annotation))})" if get_origin(annotation) is Literal else text
