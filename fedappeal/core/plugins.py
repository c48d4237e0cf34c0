"""Plug-ins: found by name, with settings of their own.

Strategies, policies, local rules, requirements and tasks are plug-ins; a model is found in the same way.

A name is one of fedappeal's, ``package.module:Name``, or an entry point. The settings of a plug-in stand under its
own name: ``mine.learning-rate``.

What may a name import, and what may then be called? `Registry.find` answers for all, and `Allowed` says who asks.
What users type on their own command line needs no permission. What a message, a bundle, a run's folder or a model's
card names is of fedappeal a short name, or a subclass of its kind's base class in few modules; of a package that is
allowed such a subclass, or a function that the package itself defines.
"""

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict

from fedappeal.core.places import reason
from fedappeal.settings.config import ConfigError, Settings
from fedappeal.settings.model import did_you_mean

PLUGIN_PATH = "FEDAPPEAL_PLUGIN_PATH"
"""Environment variable: the folder that is searched last for ``package.module:Name``; not set: the current one."""
HERE = "."
"""Name of the current folder among the packages that a call allows."""
_OURS = ("fedappeal", "client", "server", "strategies")


class PluginSettings(Settings):
    """Settings of a plug-in; derive from it, one field a setting."""

    model_config = ConfigDict(coerce_numbers_to_str=True, validate_default=True)


def name_of_class(written: str) -> str:
    """Return a plug-in class's default name: the class name in kebab case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", written).lower()


class Plugin:
    """The base of all classes that a run's settings can name.

    Args:
        settings: the plug-in's own, checked; None: the defaults.

    Attributes:
        name: unique over all plug-ins; by default the class name in kebab case.
    """

    name: ClassVar[str] = ""
    Settings: ClassVar[type[PluginSettings]] = PluginSettings

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in cls.__dict__:
            cls.name = name_of_class(cls.__name__)

    def __init__(self, settings: PluginSettings | None = None) -> None:
        self.settings: Any = self.Settings.parse({}) if settings is None else settings

    @classmethod
    def settings_name(cls) -> str:
        """Return the name under which the plug-in's settings stand."""
        return cls.name

    @classmethod
    def summary_line(cls) -> str:
        """Return the first line of the plug-in's docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]


def parse_section(plugin: type[Plugin], values: Mapping[str, Any]) -> PluginSettings:
    """Return a plug-in's settings.

    Args:
        plugin: the plug-in.
        values: given settings by their own keys.

    Raises:
        ConfigError: one line a setting that is wrong, with the plug-in's name in front.
    """
    try:
        return plugin.Settings.parse(values)
    except ConfigError as error:
        raise ConfigError(_with_prefix(str(error), plugin.settings_name())) from None


def _with_prefix(lines: str, name: str) -> str:
    """Prefix the keys of errors with a plug-in's name."""
    prefixed = []
    for line in lines.splitlines():
        unknown = re.sub(r"'([^']+)'", rf"'{name}.\1'", line) if line.startswith("unknown setting") else ""
        prefixed.append(unknown or (f"{name}.{line}" if re.match(r"[a-z0-9-]+ (= |is missing)", line) else line))
    return "\n".join(prefixed)


@dataclass(frozen=True)
class Allowed:
    """The packages that may be imported for a name, and who asks for it.

    Attributes:
        packages: names of packages or distributions that a message, a run's folder or a file may name; None: users
            name all themselves.
        by_call: whether a command or a Python call allows them, for a folder; else a client's owner does. The current
            folder is then searched only where `HERE` is among the packages.
    """

    packages: frozenset[str] | None = None
    by_call: bool = False

    @classmethod
    def of(cls, packages: Iterable[str], by_call: bool = False) -> "Allowed":
        """Return an allowance of the named packages alone."""
        return cls(frozenset(name.strip() for name in packages if name.strip()), by_call)

    def missing(self, module: str, distribution: str = "") -> list[str]:
        """Return what an import of a module lacks; empty if it is allowed.

        Packages that are not allowed, and `HERE` for a module of the current folder.
        """
        if self.packages is None or _is_our_module(module):
            return []
        first = module.partition(".")[0]
        package = [] if self.granted(module, distribution) else [distribution or first]
        return [*package, *([HERE] if self.by_call and HERE not in self.packages and _only_here(first) else [])]

    def granted(self, module: str, distribution: str = "") -> str:
        """Return the outermost allowed package that contains a module; empty if none does."""
        packages, parts = self.packages or frozenset[str](), module.split(".")
        if distribution in packages:
            return parts[0]
        outer = (".".join(parts[: n + 1]) for n in range(len(parts)))
        return next((package for package in outer if package in packages), "")

    def check(self, kind: str, name: str, module: str, distribution: str = "") -> None:
        """Check before an import.

        Raises:
            ConfigError: names the package and how it is allowed.
        """
        if not (missing := self.missing(module, distribution)):
            return
        if self.by_call:
            raise ConfigError(f"{kind} = '{name}' is not allowed: {runs_only_with(missing)}")
        raise ConfigError(
            f"{kind} = '{name}' is not allowed: this client's owner has not allowed the package '{missing[0]}' "
            f"(--allow {missing[0]})"
        )


ALL = Allowed()


def allow_options(missing: Iterable[str]) -> list[str]:
    """Return the options of a command that allow packages, the current folder last."""
    names = sorted(set(missing), key=lambda name: (name == HERE, name))
    return [word for name in names for word in ("--allow", name)]


def runs_only_with(missing: Collection[str]) -> str:
    """Return the words that say with which options code would run."""
    options = " ".join(allow_options(missing))
    return f"code that it names runs only with {options}" + (" (the current folder)" if HERE in missing else "")


P = TypeVar("P")


@dataclass(frozen=True)
class Registry(Generic[P]):
    """The plug-ins of one kind.

    Attributes:
        kind: what a setting calls it: ``strategy``.
        group: entry-point group of other distributions.
        base: the class that a plug-in is derived from, or its ``module:Name``.
        built_in: ``module:Name`` by the name of each that comes with fedappeal.
        also: other forms of names, for messages.
        places: further modules of fedappeal's, whose classes a message or file may name.
        instance: whether an object of an allowed package is a plug-in of this kind; None: none is.
    """

    kind: str
    group: str
    base: type[P] | str
    built_in: Mapping[str, str]
    also: str = ""
    places: tuple[str, ...] = ()
    instance: Callable[[object], bool] | None = None

    @cached_property
    def base_class(self) -> type[P]:
        """The class that a plug-in is derived from."""
        base: type[P] = _built_in(self.base) if isinstance(self.base, str) else self.base
        return base

    @property
    def base_name(self) -> str:
        """The base class's module and name, for messages."""
        return f"{self.base_class.__module__}.{self.base_class.__name__}"

    def names(self) -> list[str]:
        """Return fedappeal's names and those of installed entry points."""
        installed = {entry.name for entry in entry_points(group=self.group)}
        return [*self.built_in, *sorted(installed - self.built_in.keys())]

    def load(self, name: str, allowed: Allowed = ALL) -> type[P]:
        """Return the plug-in of a name.

        Args:
            name: one of `names`, or ``package.module:Name``.
            allowed: packages that may be imported; fedappeal's own always may.

        Raises:
            ConfigError: one line: unknown, not allowed, not importable, or of another kind.
        """
        plugin = self.find(name, allowed)
        if not (isinstance(plugin, type) and issubclass(plugin, self.base_class)):
            raise ConfigError(f"{self.kind} = '{name}' is not allowed: it is no subclass of {self.base_name}")
        return plugin

    def maker(self, name: str, allowed: Allowed = ALL) -> Callable[..., object]:
        """Return the class or function that makes a plug-in of this name.

        Arguments and errors as `load`.
        """
        if not self.package(name):  # not each function of fedappeal's makes a plug-in
            return self.load(name, allowed)
        plugin = self.find(name, allowed)
        if not callable(plugin):
            raise ConfigError(f"{self.kind} = {name!r} is not allowed: {name.rpartition(':')[2]} is not callable")
        made: Callable[..., object] = plugin
        return made

    def find(self, name: str, allowed: Allowed = ALL) -> Any:
        """Return the object of a name, of any type, as a user names it.

        Arguments and errors as `load`.
        """
        if name in self.built_in:
            return _built_in(self.built_in[name])
        path, distribution = self._path(name)
        module, _, attribute = path.partition(":")
        steps = attribute.split(".")
        if not all(step.replace("-", "_").isidentifier() for step in (*module.split("."), *steps)):
            raise ConfigError(f"{self.kind} = {name!r} is not allowed: write your own as package.module:Name")
        allowed.check(self.kind, name, module, distribution)
        if allowed.packages is not None:
            self._check_path(name, module, steps)
        if not _is_our_module(module):
            _search_plugin_path(module.partition(".")[0])
        try:
            plugin: Any = importlib.import_module(module)
            for step in steps:
                plugin = getattr(plugin, step)
                if isinstance(plugin, ModuleType):  # else a module that is allowed leads to all that it imports
                    raise TypeError(f"'{step}' is a module of its own: write it before the colon")
        except (Exception, SystemExit) as error:
            hint = did_you_mean(str(error.name), dir(error.obj), " ({})") if isinstance(error, AttributeError) else ""
            raise ConfigError(f"{self.kind} = '{name}' cannot be imported: {reason(error)}{hint}") from error
        if allowed.packages is not None:
            self._check_plugin(name, plugin, allowed.granted(module, distribution))
        return plugin

    def _check_path(self, name: str, module: str, steps: list[str]) -> None:
        """Check the module of a name from a message or file, before its import.

        Raises:
            ConfigError: a module of fedappeal's that holds no plug-ins of this kind, a program, or several steps.
        """
        if _is_our_module(module) and module not in {
            *self.places,
            *(path.partition(":")[0] for path in self.built_in.values()),
        }:
            raise ConfigError(f"{self.kind} = '{name}' is not allowed: '{module}' holds none that a run may name")
        if special := [part for part in (*module.split(".")[1:], *steps) if part.startswith("__")]:
            raise ConfigError(f"{self.kind} = '{name}' is not allowed: '{special[0]}' is no plug-in")
        if len(steps) > 1 and ":" in name:
            raise ConfigError(f"{self.kind} = '{name}' is not allowed: one name behind the colon")

    def _check_plugin(self, name: str, plugin: Any, package: str) -> None:
        """Check an object that a message or a file names, before it is called.

        Raises:
            ConfigError: neither a subclass of the kind's base class nor, outside of fedappeal, a function that the
                allowed package defines.
        """
        if isinstance(plugin, type) and issubclass(plugin, self.base_class):
            return
        if package and self.instance is not None and self.instance(plugin):
            return
        if package and isinstance(plugin, FunctionType) and f"{plugin.__module__}.".startswith(f"{package}."):
            return
        function = f", nor a function that '{package}' defines" if package else ""
        raise ConfigError(f"{self.kind} = '{name}' is not allowed: it is no subclass of {self.base_name}{function}")

    def package(self, name: str) -> str:
        """Return the package that an owner must allow for a name.

        Empty for fedappeal's own.

        Raises:
            ConfigError: the name is not known.
        """
        path, distribution = self._path(name)
        module = path.partition(":")[0]
        return "" if _is_our_module(module) else distribution or module.partition(".")[0]

    def missing(self, name: str, allowed: Allowed) -> list[str]:
        """Return the packages that a named plug-in's import lacks.

        As `Allowed.missing`; raises as `package`.
        """
        path, distribution = self._path(name)
        return allowed.missing(path.partition(":")[0], distribution)

    def _path(self, name: str) -> tuple[str, str]:
        if name in self.built_in:
            return self.built_in[name], ""
        if ":" in name:
            return name, ""
        for entry in entry_points(group=self.group):
            if entry.name == name:
                return entry.value, entry.dist.name if entry.dist else ""
        names = self.names()
        hint = did_you_mean(name, names, " ({})")
        allowed = f"{', '.join(names)}{self.also}, or package.module:Name of your own"
        raise ConfigError(f"{self.kind} = {name!r} is not allowed: {allowed}{hint}")


def _built_in(path: str) -> Any:
    """Return fedappeal's own object at ``module:Name``."""
    module, _, name = path.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def _search_plugin_path(package: str) -> None:
    """Put the user's folder last on the import path.

    A console script does not search it.

    The current folder is searched only for a package that is nowhere else.
    """
    folder = os.environ.get(PLUGIN_PATH) or ("" if is_importable(package) else os.getcwd())
    if folder and folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
        _SEARCHED.append(folder)


_SEARCHED: list[str] = []
"""Folders that `_search_plugin_path` has added to the import path of this process."""


def is_importable(package: str) -> bool:
    """Whether a package is on the import path without plug-in folders; not imported."""
    searched = PathFinder.find_spec(package, _SEARCHED) if _SEARCHED else None
    loaded = sys.modules.get(package)
    if searched is None and loaded is not None:
        return True
    spec = loaded.__spec__ if loaded is not None else find_spec(package)
    return spec is not None and (searched is None or spec.origin != searched.origin)


def _only_here(package: str) -> bool:
    """Whether a package is found in the current folder alone."""
    elsewhere = os.environ.get(PLUGIN_PATH) or is_importable(package)
    return not elsewhere and PathFinder.find_spec(package, [os.getcwd()]) is not None


@contextmanager
def current_folder_unsearched() -> Iterator[None]:
    """Keep the current folder off child processes' import path during the block."""
    if os.environ.get(PLUGIN_PATH):
        yield
        return
    os.environ[PLUGIN_PATH] = os.devnull
    try:
        yield
    finally:
        del os.environ[PLUGIN_PATH]


def _is_our_module(module: str) -> bool:
    return module.partition(".")[0] in _OURS


def is_ours(plugin: Any) -> bool:
    """Whether a plug-in comes with fedappeal."""
    return _is_our_module(str(plugin.__module__))


_distributions = cache(packages_distributions)
"""Returns the installed distributions by top-level package; reads them once, which takes a third of a second."""


@dataclass(frozen=True)
class Provenance:
    """The origin of a plug-in's code.

    Attributes:
        name: as the run names it.
        distribution: the installed distribution; empty for a plain module.
        version: its version.
        source: first 16 hex digits of the SHA-256 of the module's file.
    """

    name: str
    distribution: str
    version: str
    source: str

    @classmethod
    def of(cls, name: str, plugin: Any) -> "Provenance":
        """Return the provenance of an imported plug-in."""
        module = str(plugin.__module__)
        distribution = next(iter(_distributions().get(module.partition(".")[0], [])), "")
        try:
            number = version(distribution) if distribution else ""
        except PackageNotFoundError:
            number = ""
        file = getattr(sys.modules.get(module), "__file__", None)
        source = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
        return cls(name, distribution, number, source)

    def __str__(self) -> str:
        package = f"{self.distribution} {self.version}" if self.distribution else "no distribution"
        return f"{self.name} ({package}, source {self.source or 'unknown'})"
