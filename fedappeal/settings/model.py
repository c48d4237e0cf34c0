"""The base of all settings: kebab-case keys, bounds, and errors as one line each."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
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


def kebab(name: str) -> str:
    """Return a field's name as its key: ``batch-size``."""
    return name.replace("_", "-")


def setting(default: Any, description: str, **facts: str | bool) -> Any:
    """Return a field with facts about how it is set and shown; `fact` reads them.

    Args:
        default: its default.
        description: its help.
        facts: ``unit``; ``joined``: what joins the values of an option that can be repeated; ``flag``: an option
            without its ``--no-``; ``internal``: commands set it, users do not; ``variable``: containers and services
            take it from a variable of its name.
    """
    return Field(default, description=description, json_schema_extra=dict(facts))


def fact(field: FieldInfo, name: str) -> str:
    """Return a fact about a field, as `setting` was given it; empty: it has none."""
    extra = field.json_schema_extra
    return str(extra.get(name) or "") if isinstance(extra, dict) else ""


Group = TypeVar("Group", bound="Settings")


class Settings(BaseModel):
    """Base of all validated settings: kebab-case keys, nothing unknown, errors as one line each."""

    model_config = ConfigDict(
        alias_generator=kebab, populate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )

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
            near = difflib.get_close_matches(key, cls.keys(), n=1)
            return f"unknown setting '{key}'" + (f"; did you mean '{near[0]}'?" if near else "")
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
    def keys(cls) -> list[str]:
        """Return all keys in kebab case."""
        return list(cls.by_key())

    def part(self, group: type[Group]) -> Group:
        """Return the settings of one group, of which these have all fields."""
        return group(**{name: getattr(self, name) for name in group.model_fields})

    def as_config(self) -> dict[str, Scalar]:
        """Return all settings as scalars under their kebab-case keys, without those that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True)
