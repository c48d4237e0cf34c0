"""Command-line options made from the run configuration, and ``--set`` for the settings of plug-ins."""

import inspect
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer

from fedappeal.settings.config import ConfigError, RunConfig, Scalar, TaskSettings, plugin_settings

HIDDEN = frozenset({"resume", "schedule_rounds", "plugins"})
"""Fields that are no option: commands set the first two, ``--set`` fills the last."""
SET = "set"
"""The option for settings of plug-ins."""
SET_HELP = (
    "a setting of a plug-in: NAME.KEY=VALUE, several by spaces, repeatable; `fedappeal list NAME` shows what there is"
)

_TASK = frozenset(TaskSettings.model_fields)


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each general key of the run configuration, and ``--set``.

    Args:
        command: takes its own options by keyword, and the given settings as ``settings``: a dict that holds only what
            the user wrote, under kebab-case keys, those of plug-ins under ``NAME.KEY``.

    Returns:
        A function whose signature typer can read.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]
    fields = {name: field for name, field in RunConfig.model_fields.items() if name not in HIDDEN}
    parameters = [
        inspect.Parameter(
            SET,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(None, f"--{SET}", help=SET_HELP, rich_help_panel="Run"),
            annotation=list[str] | None,
        )
    ]
    parameters += [
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
        settings = plugin_options(given.pop(SET) or ())
        settings |= {name.replace("_", "-"): given[name] for name in fields if given.get(name) is not None}
        command(settings=settings, **{key: value for key, value in given.items() if key not in fields})

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + parameters
    )
    run.__annotations__ = {p.name: p.annotation for p in [*own, *parameters]}
    return run


def plugin_options(given: Iterable[str]) -> dict[str, Scalar]:
    """Return the settings that ``--set`` options hold, by ``NAME.KEY``; of one given twice the last counts.

    Raises:
        ConfigError: for another form; a general setting is named with its own option.
    """
    settings: dict[str, Scalar] = {}
    general = RunConfig.keys()
    for text in given:
        key = text.partition("=")[0].strip().replace("_", "-")
        if key in general:
            raise ConfigError(f"set = '{text}' is not allowed: '{key}' is a general setting with an option --{key}")
        settings |= plugin_settings(text)
    return settings


def _plain(annotation: Any) -> Any:
    """Return the plain type behind an annotated one, for typer; the run configuration checks the bounds."""
    if get_origin(annotation) in (Literal, Union, UnionType):
        return str
    return get_args(annotation)[0] if get_args(annotation) else annotation


def _help(text: str, annotation: Any) -> str:
    return f"{text} ({' | '.join(get_args(annotation))})" if get_origin(annotation) is Literal else text
