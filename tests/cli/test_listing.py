"""`fedappeal list`: what can be named, and a plug-in's settings, its owner's own too."""

import sys
from functools import cache
from pathlib import Path

import pytest

from fedappeal.cli.check_plugin import check_own
from fedappeal.cli.listing import all_names, description
from fedappeal.core import plugins
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.settings.config import ConfigError
from fedappeal.tasks import TASKS

OWN = '''
from pydantic import Field

from fedappeal.core.plugins import PluginSettings
from strategies.fedavg import FedAvg


class Mine(FedAvg):
    """Mine alone: an example."""

    class Settings(PluginSettings):
        rate: float = Field(0.25, description="how fast")


def task(settings, data_dir):
    """A task that a function makes."""
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's in the current folder."""
    (tmp_path / "listed.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read what is installed once a test: each time takes 10 ms, and a name is looked for in eight lists."""
    monkeypatch.setattr(plugins, "entry_points", cache(plugins.entry_points))


def shown(name: str) -> list[str]:
    return list(description(name))


def test_every_plugin_is_listed_with_its_summary() -> None:
    lines = list(all_names())
    for registry in (STRATEGIES, POLICIES, LOCAL_RULES, REQUIREMENTS, TASKS):
        for name in registry.names():
            summary = registry.load(name).summary_line()
            assert any(line.split()[0] == name and line.endswith(summary) for line in lines if line.strip()), name


def test_the_list_says_which_local_rules_train_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOCAL_RULES.load("maml"), "batched", False)
    lines = {line.split()[0]: line for line in all_names()}
    assert " side by side: " in lines["prox"]
    assert " one by one: " in lines["maml"]


def test_a_strategy_is_shown_with_attributes_and_settings() -> None:
    lines = shown("maxfl")
    assert lines[0] == "strategy maxfl"
    assert "  needs a loss as rho_k          yes" in lines
    assert "    maxfl.server-lr     1.0      eta_g, the server's learning rate" in lines
    assert sum("maxfl." in line for line in lines) == 6  # five settings, and how to set them


@pytest.mark.parametrize("registry", [STRATEGIES, POLICIES, LOCAL_RULES, REQUIREMENTS, TASKS])
def test_all_that_come_with_fedappeal_can_be_shown(registry: object) -> None:
    for name in registry.names():  # type: ignore[attr-defined]
        lines = shown(name)
        keys = registry.load(name).Settings.keys()  # type: ignore[attr-defined]
        for key in keys:
            assert any(line.strip().partition(" ")[0].endswith(f".{key}") for line in lines)


def test_a_name_of_two_plugins_shows_both() -> None:
    lines = shown("scaffold")
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "strategy scaffold",
        "local-rule scaffold",
    ]


def test_a_rule_shows_its_algorithms_settings() -> None:
    assert any("fedprox.proximal-mu" in line for line in shown("prox"))


@pytest.mark.usefixtures("own")
def test_a_plugin_of_ones_own_is_shown_alike() -> None:
    lines = shown("listed:Mine")
    assert lines[:2] == ["strategy listed:Mine", "  Mine alone: an example."]
    assert lines[-1] == "    mine.rate  0.25  how fast"
    assert shown("listed:task") == [
        "task listed:task",
        "  A task that a function makes.",
        "  no settings of its own",
    ]
    assert shown("mlp")[0] == "model mlp"


def test_a_tracker_has_no_dry_run() -> None:
    with pytest.raises(ConfigError, match="name = 'tensorboard' is not allowed: a dry run has no trackers"):
        check_own("tensorboard", {})


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("maxfk", r"name = 'maxfk' is not allowed: no plug-in is called so; did you mean 'maxfl'\?"),
        ("qqqq", r"name = 'qqqq' is not allowed: no plug-in is called so; `fedappeal list` shows all"),
        ("builtins:max", "name = 'builtins:max' is not allowed: it is no subclass of strategies"),
        ("nowhere:X", "name = 'nowhere:X' cannot be imported: ModuleNotFoundError"),
        (
            "pathlib:Path",
            "name = 'pathlib:Path' is not allowed: it is no subclass of strategies.rounds.strategy.Strat",
        ),
    ],
)
def test_what_is_no_plugin_is_one_line(name: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        shown(name)
    assert "\n" not in str(error.value)
