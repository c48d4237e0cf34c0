"""A setting is described by the docstring below it, or by its ``description``; every setting has one."""

import pytest
from pydantic import Field

from client.limits.limits import Limits
from client.settings import owner_fields
from fedappeal.cli.listing import plugins_with_settings
from fedappeal.core.plugins import Plugin, PluginSettings
from fedappeal.settings.config import RunConfig
from fedappeal.settings.model import attribute_docs
from strategies.rounds.shared import SharedSettings


class Own(Plugin):
    class Settings(PluginSettings):
        below: int = 1
        """in two
        lines"""
        beside: int = Field(2, description="in the field")
        """not this one"""
        without: int = 3


class Derived(Own):
    class Settings(Own.Settings):
        below: int = 4
        further: float = 0.5
        """of its own"""


def descriptions(settings: type[PluginSettings]) -> dict[str, str | None]:
    return {key: field.description for key, field in settings.described().items()}


def test_the_docstring_below_a_setting_is_its_description() -> None:
    assert descriptions(Own.Settings) == {"below": "in two lines", "beside": "in the field", "without": ""}


def test_a_derived_class_has_its_base_class_descriptions() -> None:
    assert descriptions(Derived.Settings) == {
        "below": "in two lines",
        "beside": "in the field",
        "without": "",
        "further": "of its own",
    }


def test_a_module_without_a_file_has_none() -> None:
    assert attribute_docs("builtins") == {}


@pytest.mark.parametrize("name", [*plugins_with_settings()])
def test_every_setting_of_ours_is_described(name: str) -> None:
    assert all(descriptions(plugins_with_settings()[name].Settings).values())


def test_every_setting_of_runs_and_owners_is_described() -> None:
    fields = {**owner_fields(), **RunConfig.described(), **SharedSettings.described(), **Limits.described()}
    assert [key for key, field in fields.items() if not field.description] == []
