"""The functions that an experiment's file names."""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

PACKAGE = __name__.rpartition(".")[0]

Call = Sequence[Any]
"""A function's name and its arguments; a table at the end holds keyword arguments."""


def find_name(name: str, module: ModuleType | None = None) -> Any:
    """Return the object of a name, ``@module:name`` here or a public one of `module`.

    Raises:
        ValueError: there is no such thing.
    """
    place, colon, attribute = name.removeprefix("@").partition(":")
    if colon:
        module = importlib.import_module(f"{PACKAGE}.{place}")
    value = getattr(module, attribute or place, None)
    if value is None:
        raise ValueError(f"'{name}' is no function of {module.__name__ if module else PACKAGE}")
    return value


def evaluate_call(call: Call, module: ModuleType | None = None) -> Any:
    """Return the result of a call; arguments may be names of this package."""
    name, *arguments = call
    keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
    values = {key.replace("-", "_"): value_of(value) for key, value in keywords.items()}
    return find_name(name, module)(*map(value_of, arguments), **values)


def value_of(value: Any) -> Any:
    """Return a call's argument with names of this package replaced by their objects."""
    if isinstance(value, list | tuple):
        return [value_of(part) for part in value]
    return find_name(value) if isinstance(value, str) and value.startswith("@") else value
