"""The base of all settings: kebab-case keys, bounds, errors in one line; and settings of plug-ins beside them."""

import ast
import difflib
import inspect
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

Scalar = bool | int | float | str
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
TrimShare = Annotated[float, Field(gt=0, lt=0.5)]


class ConfigError(ValueError):
    """A setting that is not allowed; the message has one line a setting."""


class NotHere(ConfigError):
    """What a setting needs is not to be had here and now, such as a port that is taken."""


class Failure(RuntimeError):
    """What a command ends with, in one or more lines.

    Attributes:
        code: the command's exit code.
    """

    code = 1

    @property
    def lines(self) -> tuple[str, ...]:
        """What the command says of it."""
        return self.args


def local_path(path: str | Path, setting: str) -> Path:
    """Return a path with a home in place of its ``~``; ConfigError where no user has that home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{setting} = '{path}' is not allowed: no user has a home of this name") from None


def did_you_mean(name: str, names: Iterable[str], form: str = "; {}") -> str:
    """Return "did you mean 'NAME'?" for a near name; empty if none is near.

    Args:
        name: what was written.
        names: what is allowed.
        form: what stands around the question.
    """
    near = difflib.get_close_matches(name, list(names), n=1)
    return form.format(f"did you mean '{near[0]}'?") if near else ""


def kebab(name: str) -> str:
    """Return a field's name as its key: ``batch-size``."""
    return name.replace("_", "-")


def setting(default: Any, **facts: str | bool) -> Any:
    """Return a field with facts about how it is set and shown; `fact` reads them.

    Args:
        default: its default.
        facts: ``unit``; ``joined``: what joins the values of an option that can be repeated; ``flag``: an option
            without its ``--no-``; ``internal``: commands set it, users do not; ``variable``: containers and services
            take it from a variable of its name.
    """
    return Field(default, json_schema_extra=dict(facts))


def fact(field: FieldInfo, name: str) -> str:
    """Return a fact that `setting` attached to a field; empty if it has none."""
    extra = field.json_schema_extra
    return str(extra.get(name) or "") if isinstance(extra, dict) else ""


def choices(field: FieldInfo) -> str:
    """Return a setting's allowed values as text; empty if its type does not list them."""
    return " | ".join(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""


@cache
def attribute_docs(module: str) -> dict[str, str]:
    """Return the docstrings below the attributes of a module's classes, one line each, by ``CLASS.ATTRIBUTE``.

    Empty where its source is not a file's. Pydantic's own ``use_attribute_docstrings`` reads it for every class that
    is made, which takes each start 60 ms.
    """
    docs = {}

    def read(body: list[ast.stmt], prefix: str) -> None:
        for part, below in pairwise([*body, ast.Pass()]):
            match part, below:
                case ast.ClassDef(name=name, body=inner), _:
                    read(inner, f"{prefix}{name}.")
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[prefix + name] = " ".join(text.split())

    try:
        read(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    except (OSError, TypeError):
        return {}
    return docs


def attribute_doc(kind: type, name: str) -> str:
    """Return the docstring below an attribute, in its class or the first base with one; empty without any."""
    owners = (base for base in kind.__mro__ if name in inspect.get_annotations(base))
    docs = (attribute_docs(base.__module__).get(f"{base.__qualname__}.{name}") for base in owners)
    return next(filter(None, docs), "")


Group = TypeVar("Group", bound="Settings")


class Settings(BaseModel):
    """Base of all validated settings: kebab-case keys, nothing unknown, errors as one line each."""

    model_config = ConfigDict(
        alias_generator=kebab, populate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a boolean in place of a number, and a whole number that Flower's messages cannot hold."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = {annotation, *get_args(annotation)}
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("a number")
        if isinstance(value, int) and int in kinds and not -(2**63) <= value < 2**63:
            raise ValueError("a whole number of at most 64 bits")
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate settings given under their kebab-case keys.

        Raises:
            ConfigError: one line a setting that is wrong: the setting, its value, what is allowed.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError("\n".join(cls._explain(e) for e in error.errors())) from None

    @classmethod
    def _explain(cls, error: Any) -> str:
        key = kebab(str(error["loc"][0])) if error["loc"] else ""
        value = error.get("input")
        if error["type"] == "extra_forbidden":
            return f"unknown setting '{key}'{did_you_mean(key, cls.keys())}"
        if error["type"] == "missing":
            return f"{key} is missing"
        reason = error["msg"].removeprefix("Value error, ")
        if not key:
            return str(reason)
        return f"{key} = {value!r} is not allowed: {reason[:1].lower()}{reason[1:]}"

    @classmethod
    def by_key(cls) -> dict[str, FieldInfo]:
        """Return all fields by their keys in kebab case."""
        return {kebab(name): field for name, field in cls.model_fields.items()}

    @classmethod
    def described(cls) -> dict[str, FieldInfo]:
        """Return the fields of `by_key`, each with its ``description``, else with the docstring below it."""
        for name, field in cls.model_fields.items():
            field.description = field.description or attribute_doc(cls, name)
        return cls.by_key()

    @classmethod
    def keys(cls) -> list[str]:
        """Return all keys in kebab case."""
        return list(cls.by_key())

    def part(self, group: type[Group]) -> Group:
        """Return the settings of one group, of which these have all fields; they are checked already."""
        return group.model_construct(**{name: getattr(self, name) for name in group.model_fields})

    def as_config(self) -> dict[str, Scalar]:
        """Return all settings as scalars under their kebab-case keys, without those that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True)


def is_reference(name: str) -> bool:
    """Whether a name is ``package.module:attribute``."""
    module, _, attribute = name.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def scalar(text: str) -> Scalar:
    """Return a text as a boolean or number, else itself (``007`` too)."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] == "0" and text.isdigit() and len(text) > 1:
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def key_and_value(text: str, setting: str) -> tuple[str, Scalar]:
    """Return the key and the value of ``KEY=VALUE``.

    Raises:
        ConfigError: for another form; names the setting whose value it is.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{setting} = '{text}' is not allowed: KEY=VALUE")
    return key, scalar(value)


def plugin_settings(text: str) -> dict[str, Scalar]:
    """Return settings of plug-ins written as ``NAME.KEY=VALUE``, separated by spaces.

    Raises:
        ConfigError: for another form.
    """
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"set = '{text}' is not allowed: {error}") from None
    settings = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not all(key.strip().partition(".")):
            raise ConfigError(f"set = '{part}' is not allowed: NAME.KEY=VALUE, a setting of a plug-in")
        settings[kebab(key.strip())] = scalar(value.strip())
    return settings


class WithPlugins(Settings):
    """General settings, and beside them settings of plug-ins under ``NAME.KEY``."""

    plugins: tuple[tuple[str, Scalar], ...] = Field((), exclude=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, ignore_unknown: bool = False) -> Self:
        """Validate settings; dotted keys, and those in the text ``set``, belong to plug-ins.

        Args:
            values: by kebab-case key; ``set`` holds ``NAME.KEY=VALUE``, separated by spaces.
            ignore_unknown: leave general keys out that this version does not have.

        Raises:
            ConfigError: one line a setting that is wrong.
        """
        general = {key: value for key, value in values.items() if "." not in key and key not in ("set", "plugins")}
        plugins = {kebab(key): value for key, value in values.items() if "." in key}
        plugins |= plugin_settings(str(values.get("set", "")))
        if wrong := [key for key, value in plugins.items() if not isinstance(value, Scalar)]:
            raise ConfigError(
                "\n".join(
                    f"{key} = {plugins[key]!r} is not allowed: a number, a text, true or false" for key in wrong
                )
            )
        if ignore_unknown:
            fields = cls.by_key()
            general = {key: value for key, value in general.items() if key in fields}
        return super().parse(general | {"plugins": tuple(sorted(plugins.items()))})

    @classmethod
    def by_key(cls) -> dict[str, FieldInfo]:
        """Return all general fields by their keys in kebab case."""
        return {key: field for key, field in super().by_key().items() if key != "plugins"}

    def as_config(self) -> dict[str, Scalar]:
        """Return all settings as scalars, those of plug-ins under ``NAME.KEY``."""
        return {**super().as_config(), **dict(self.plugins)}

    def section(self, name: str) -> dict[str, Scalar]:
        """Return the settings given for one plug-in, by their own keys."""
        return section(dict(self.plugins), name)

    def sections(self) -> list[str]:
        """Return the names under which settings of plug-ins are given."""
        return sorted({key.partition(".")[0] for key, _ in self.plugins})

    def with_plugins(self, more: Iterable[tuple[str, Scalar]]) -> Self:
        """Return a copy with further settings of plug-ins, which count before those that are there."""
        return self.model_copy(update={"plugins": tuple(sorted({**dict(self.plugins), **dict(more)}.items()))})


def section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values under ``NAME.KEY`` of one name, by their own keys."""
    return {key.partition(".")[2]: value for key, value in values.items() if key.partition(".")[0] == name}
