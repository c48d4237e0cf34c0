"""Settings of plug-ins, ``NAME.KEY=VALUE``, carried beside the general ones."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field
from pydantic.fields import FieldInfo

from fedappeal.settings.model import ConfigError, Scalar, Settings, kebab


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


def plugin_setting(text: str) -> tuple[str, Scalar]:
    """Return the key and the value of ``NAME.KEY=VALUE``.

    Raises:
        ConfigError: for another form.
    """
    key, equals, value = text.partition("=")
    name, dot, rest = key.strip().partition(".")
    if not (equals and name and dot and rest):
        raise ConfigError(f"set = '{text}' is not allowed: NAME.KEY=VALUE, a setting of a plug-in")
    return kebab(key.strip()), scalar(value.strip())


def plugin_settings(text: str) -> dict[str, Scalar]:
    """Return settings of plug-ins written as ``NAME.KEY=VALUE``, separated by spaces.

    Raises:
        ConfigError: for another form.
    """
    try:
        return dict(plugin_setting(part) for part in shlex.split(text))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"set = '{text}' is not allowed: {error}") from None


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
            general = {key: value for key, value in general.items() if key in cls.by_key()}
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
