"""Command-line options made from fields of settings, and ``--set`` for the settings of plug-ins."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
import typer
from click import NoSuchOption, UsageError
from pydantic.fields import FieldInfo

from client.limits.limits import Limits, shown_default
from client.settings import owner_fields
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, Settings, TaskSettings, plugin_settings
from fedappeal.settings.model import fact, kebab

SET = "set"
"""The option for settings of plug-ins."""
SET_HELP = (
    "a setting of a plug-in: NAME.KEY=VALUE, several by spaces, repeatable; `fedappeal list NAME` shows what there is"
)

Command = Callable[..., None]


def with_run_options(command: Command) -> Command:
    """Give a command an option for each general key of the run configuration, and ``--set``.

    Args:
        command: takes its own options by keyword, and the given settings as ``settings``: a dict that holds only what
            the user wrote, under kebab-case keys, those of plug-ins under ``NAME.KEY``.

    Returns:
        A function whose signature typer can read.
    """
    chosen = typer.Option(None, f"--{SET}", help=SET_HELP, rich_help_panel="Run")
    parameters = [_parameter(SET, chosen, list[str] | None)]
    for key, field in RunConfig.described().items():
        panel = "Task" if key in TaskSettings.by_key() else "Run"
        shown = str(field.default) if field.default != "" else False
        parameters += _of_field(key, field, _choices(field), None, show_default=shown, rich_help_panel=panel)

    def settings(options: dict[str, Any]) -> dict[str, Any]:
        return {"settings": {**plugin_options(options.pop(SET) or ()), **_values_set(options)}}

    return _with_options(command, ["settings"], parameters, settings)


def with_limit_options(command: Command) -> Command:
    """Return the command with an option for each of an owner's limits.

    It takes those that are set as ``given``, by key.
    """
    parameters: list[inspect.Parameter] = []
    for key, field in Limits.described().items():
        unit = f" ({fact(field, 'unit')})" if fact(field, "unit") else ""
        shown = shown_default(field.default)
        parameters += _of_field(key, field, unit, None, show_default=shown, rich_help_panel="Limits")
    return _with_options(command, ["given"], parameters, lambda options: {"given": _values_set(options)})


def with_client_options(command: Command) -> Command:
    """Give a command an option for each setting of a client's owner.

    Args:
        command: takes its own options by keyword, and all settings as ``given``: a dict by kebab-case key, with the
            defaults.
    """
    owners = owner_fields()
    parameters: list[inspect.Parameter] = []
    for key, field in owners.items():
        default = None if fact(field, "joined") else "" if field.is_required() else field.default
        parameters += _of_field(key, field, "", default)

    def given(options: dict[str, Any]) -> dict[str, Any]:
        joins = {name: fact(owners[kebab(name)], "joined") for name in options}
        values = {
            kebab(name): joins[name].join(value or ()) if joins[name] else value for name, value in options.items()
        }
        return {"given": values}

    return _with_options(command, ["given"], parameters, given)


def with_groups(command: Command) -> Command:
    """Return the command with dataclass parameters replaced by options of their fields."""
    own_parameters = inspect.signature(command).parameters
    groups: dict[str, Any] = {name: p.annotation for name, p in own_parameters.items() if is_dataclass(p.annotation)}
    parameters = [
        _parameter(field.name, field.metadata.get("option", field.default), field.type)
        for group in groups.values()
        for field in fields(group)
    ]

    def made(options: dict[str, Any]) -> dict[str, Any]:
        return {
            name: group(**{field.name: options[field.name] for field in fields(group)})
            for name, group in groups.items()
        }

    return _with_options(command, groups, parameters, made)


def part(model: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings that are fields of a model, by kebab-case key."""
    return {key: values[key] for key in model.by_key() if key in values}


def take_variables(command: click.Command) -> None:
    """Let environment variables set a command's options: ``DATA_DIR`` is ``--data-dir``; an empty one sets none."""
    for option in command.params:
        option.envvar = option.opts[0].lstrip("-").replace("-", "_").upper()


@contextmanager
def naming(options: Mapping[str, str]) -> Iterator[None]:
    """Let the block's errors name settings as the command does.

    Args:
        options: the command's name of a setting, by the setting's.
    """
    try:
        yield
    except ConfigError as error:
        setting, equals, value = str(error).partition(" = ")
        error.args = (options.get(setting, setting) + equals + value,)
        raise


class _Path(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path; an empty one would be the current folder."""
        if value == "" and param is not None:
            raise ConfigError(f"{kebab(str(param.name))} = '' is not allowed: the path of a file or folder")
        return super().convert(value, param, ctx)


def refuse_empty_paths(command: click.Command) -> None:
    """Let a command and those below it refuse paths that are empty."""
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type = _Path()
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        refuse_empty_paths(below)


def plugin_options(pairs: Iterable[str]) -> dict[str, Scalar]:
    """Return the settings of ``--set`` options, by ``NAME.KEY``.

    Of one given twice the last counts.

    Raises:
        ConfigError: for another form; a general setting is named with its own option.
    """
    settings: dict[str, Scalar] = {}
    general = RunConfig.keys()
    for text in pairs:
        key = kebab(text.partition("=")[0].strip())
        if key in general:
            raise ConfigError(f"set = '{text}' is not allowed: '{key}' is a general setting with an option --{key}")
        settings |= plugin_settings(text)
    return settings


def _with_options(
    command: Command,
    receives: Collection[str],
    parameters: list[inspect.Parameter],
    collect: Callable[[dict[str, Any]], dict[str, Any]],
) -> Command:
    """Return a command with further options.

    Args:
        command: takes its own options by keyword; where one is called as a further one, it counts.
        receives: keywords by which it takes what is collected of the further options.
        parameters: the further options.
        collect: makes these arguments of their values by name.
    """
    shown = {name: p for name, p in inspect.signature(command).parameters.items() if name not in receives}
    further = [p for p in parameters if p.name not in shown]

    def run(**values: Any) -> None:
        options = {p.name: values.pop(p.name) for p in further}
        command(**collect(options), **values)

    both = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown.values()), *further]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in both}
    return run


def _of_field(key: str, field: FieldInfo, more: str, default: Any, **looks: Any) -> list[inspect.Parameter]:
    """Return a field's option, as a list of one; empty for internal fields.

    Args:
        key: the field's, in kebab case.
        field: the field.
        more: what its help says beside the description.
        default: the option's.
        looks: of ``typer.Option``.
    """
    if fact(field, "internal"):
        return []
    plain = _plain(field.annotation)
    spelled = f"--{key}/--no-{key}" if plain is bool and not fact(field, "flag") else f"--{key}"
    annotation = list[str] if fact(field, "joined") else plain
    option = typer.Option(default, spelled, help=f"{field.description}{more}", **looks)
    return [_parameter(key.replace("-", "_"), option, annotation | None if default is None else annotation)]


def _parameter(name: str, option: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _values_set(options: Mapping[str, Any]) -> dict[str, Any]:
    return {kebab(name): value for name, value in options.items() if value is not None}


def _plain(annotation: Any) -> Any:
    """Return the plain type behind an annotated one, for typer; the settings check the bounds."""
    if get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Literal, Union, UnionType):
        return str
    return get_args(annotation)[0] if get_args(annotation) else annotation


def _choices(field: FieldInfo) -> str:
    return f" ({' | '.join(get_args(field.annotation))})" if get_origin(field.annotation) is Literal else ""


def explain(error: UsageError) -> str:
    """Return an error as one line that names the help to read.

    Args:
        error: what click found; an option that is a plug-in's setting is named with its plug-ins.
    """
    text = " ".join(error.format_message().split()).rstrip(".").replace(". Did you", "; did you")
    text = f"{text.partition('? Did you')[0]}?" if "? Did you" in text else text  # typer says again what click said
    if isinstance(error, NoSuchOption) and (settings := _settings_called(error.option_name.lstrip("-"))):
        text = f"no such option '{error.option_name}'; it is a setting of a plug-in: --set {settings[0]}=VALUE"
        text += f" (or {', '.join(settings[1:])})" if settings[1:] else ""
    help_of = f" ({_command(error)} --help)" if error.ctx else ""
    return f"{text[:1].lower()}{text[1:]}{help_of}"


def _command(error: UsageError) -> str:
    assert error.ctx is not None
    names = []
    context = error.ctx
    while context.parent is not None:
        names.append(context.info_name or "")
        context = context.parent
    return " ".join(["fedappeal", *reversed(names)])


def _settings_called(key: str) -> list[str]:
    """Return the settings of fedappeal's plug-ins that have a key, as ``NAME.KEY``."""
    from fedappeal.cli.listing import plugins_with_settings  # NumPy with it

    return [f"{name}.{key}" for name, plugin in plugins_with_settings().items() if key in plugin.Settings.by_key()]
