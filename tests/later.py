"""Packages that take seconds to import: every process of pytest collects every file, and few run their tests."""

from typing import Any

import pytest


class Later:
    """A module that is imported where its first attribute is read; without it the test that reads it is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every name of a file whether it is a test
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)
