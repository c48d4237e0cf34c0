"""Commands' options, made of signatures, dataclasses and settings; and ``--set`` for the settings of plug-ins."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import typer
from click import NoSuchOption, UsageError
from pydantic.fields import FieldInfo

from client.limits.limits import Limits, shown_default
from client.settings import owner_fields
from fedappeal.cli.brief_help import GROUPS, BriefCommand
from fedappeal.settings.config import ConfigError, RunConfig, Scalar, Settings, TaskSettings, plugin_settings
from fedappeal.settings.model import attribute_doc, choices, fact, kebab

SET = "set"
"""The option for settings of plug-ins."""
SET_HELP = (
    "a setting of a plug-in: NAME.KEY=VALUE, several by spaces, repeatable; `fedappeal list NAME` shows what there is"
)

FURTHER_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Lets a command take options of another program."""
_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
"""One of a docstring's ``Args:``."""

Command = Callable[..., None]


@dataclass(frozen=True)
class OptionGroup:
    """Options of a command that make one argument of its function.

    Attributes:
        options: as typer takes them.
        value: returns the argument, given their values by name.
    """

    options: Sequence[inspect.Parameter]
    value: Callable[[dict[str, Any]], Any]


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


def _of_field(key: str, field: FieldInfo, more: str, default: Any, **looks: Any) -> inspect.Parameter:
    """Return a field's option.

    Args:
        key: the field's, in kebab case.
        field: the field.
        more: what its help says beside the description.
        default: the option's.
        looks: of ``typer.Option``.
    """
    plain = _plain(field.annotation)
    spelled = f"--{key}/--no-{key}" if plain is bool and not fact(field, "flag") else f"--{key}"
    annotation = list[str] if fact(field, "joined") else plain
    option = typer.Option(default, spelled, help=f"{field.description}{more}", **looks)
    return _parameter(key.replace("-", "_"), option, annotation | None if default is None else annotation)


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


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _run_options() -> OptionGroup:
    """Return an option for each general key of the run configuration, and ``--set``."""
    chosen = typer.Option(None, f"--{SET}", help=SET_HELP, rich_help_panel="Run")
    options = [_parameter(SET, chosen, list[str] | None)]
    for key, field in RunConfig.described().items():
        if not fact(field, "internal"):
            panel = "Task" if key in TaskSettings.by_key() else "Run"
            shown = str(field.default) if field.default != "" else False
            more = _in_brackets(choices(field))
            options.append(_of_field(key, field, more, None, show_default=shown, rich_help_panel=panel))
    return OptionGroup(options, lambda values: {**plugin_options(values.pop(SET) or ()), **_values_set(values)})


def _limit_options() -> OptionGroup:
    """Return an option for each of an owner's limits."""
    options = []
    for key, field in Limits.described().items():
        more, shown = _in_brackets(fact(field, "unit")), shown_default(field.default)
        options.append(_of_field(key, field, more, None, show_default=shown, rich_help_panel="Limits"))
    return OptionGroup(options, _values_set)


def _owner_options() -> OptionGroup:
    """Return an option for each setting of a client's owner."""
    options, joins = [], {}
    for key, field in owner_fields().items():
        joins[key] = fact(field, "joined")
        default = None if joins[key] else "" if field.is_required() else field.default
        options.append(_of_field(key, field, "", default))

    def join_lists(values: dict[str, Any]) -> dict[str, Any]:
        by_key = {kebab(name): value for name, value in values.items()}
        return {key: joins[key].join(value or ()) if joins[key] else value for key, value in by_key.items()}

    return OptionGroup(options, join_lists)


RunValues = Annotated[dict[str, Any], _run_options()]
"""The settings of a run that the user wrote, by kebab-case key; those of plug-ins under ``NAME.KEY``."""
LimitValues = Annotated[dict[str, Scalar], _limit_options()]
"""The limits that the user wrote, by key."""
OwnerValues = Annotated[dict[str, Any], _owner_options()]
"""All settings of a client's owner by key, with the defaults."""


def _of_dataclass(kind: Any) -> OptionGroup:
    """Return an option for each field of a dataclass; its help is the docstring below it."""
    return OptionGroup([_of_attribute(kind, field) for field in fields(kind)], lambda values: kind(**values))


def _of_attribute(kind: type, field: Field[Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    option = inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
    return _typer_parameter(option, typer.Option, attribute_doc(kind, field.name))


def _typer_parameter(parameter: inspect.Parameter, kind: Callable[..., Any], help: str) -> inspect.Parameter:
    """Return a command's parameter as typer takes it.

    Args:
        parameter: one of a plain type, or annotated with what typer is to know besides; typer's context is unchanged.
        kind: `typer.Option` or `typer.Argument`; a boolean option has a ``--no-`` where its default is true.
        help: where it is not annotated with a help.
    """
    annotation = parameter.annotation
    plain, *more = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if plain is not typer.Context:
        is_flag = bool in (plain, *get_args(plain)) and parameter.default is not True
        about = copy(more[0]) if more else kind(*([f"--{kebab(parameter.name)}"] if is_flag else []))
        about.help = about.help or help
        parameter = parameter.replace(annotation=Annotated[plain, about])
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


class Commands(typer.Typer):
    """Commands that are functions whose signatures and docstrings say what typer is to know; `with_options`."""

    def add(self, name: str, **looks: Any) -> Callable[[Command], Command]:
        """Return the decorator of a command's function; ``looks``: as of `typer.Typer.command`."""
        register = self.command(name, cls=BriefCommand if name in GROUPS else None, **looks)

        def decorate(command: Command) -> Command:
            register(with_options(command))
            return command

        return decorate


def with_options(command: Command) -> Command:
    """Return a command as typer reads it.

    A parameter by position is an argument, one by keyword an option; their helps are in the docstring, below
    ``Args:``. In place of a parameter that is a dataclass stand options of its fields, of one of `RunValues`,
    `LimitValues` or `OwnerValues` options of these settings; where the command has one of such a name, that counts.
    """
    text, _, entries = (inspect.getdoc(command) or "").partition("\n\nArgs:\n")
    helps = {name: " ".join(about.split()).removesuffix(".") for name, about in _ARGUMENT.findall(entries)}
    parameters, groups = dict[str, inspect.Parameter](), dict[str, OptionGroup]()
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = _of_dataclass(parameter.annotation)
        elif isinstance(group := getattr(parameter.annotation, "__metadata__", [None])[0], OptionGroup):
            groups[name] = group
        else:
            kind = typer.Option if parameter.kind is parameter.KEYWORD_ONLY else typer.Argument
            parameters[name] = _typer_parameter(parameter, kind, helps.get(name, ""))
    further = [option for group in groups.values() for option in group.options if option.name not in parameters]

    def run(**values: Any) -> None:
        options = {option.name: values.pop(option.name) for option in further}
        for name, group in groups.items():
            values[name] = group.value({o.name: options[o.name] for o in group.options if o.name in options})
        command(**values)

    signature = inspect.Signature([*parameters.values(), *further])
    run.__name__, run.__doc__ = command.__name__, text
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: option.annotation for name, option in signature.parameters.items()}
    return run


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
