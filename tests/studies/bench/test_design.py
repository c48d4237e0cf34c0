"""The fixed design: which rows there are, and that each is a run's settings."""

import pytest

from fedappeal.core.registry import STRATEGIES
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.studies.bench.design import (
    ABOUT_AVAILABILITY,
    AVAILABILITY,
    BASELINE,
    BEHAVIOURS,
    CORE_BEHAVIOURS,
    CORE_TASKS,
    FEW,
    MATCHED,
    TASKS,
    TRIED_BY_ALL,
    WITH_MATCHES,
    cells,
)
from server.build import check_settings


def test_the_core_has_every_strategy_and_each_other_task_and_behaviour_is_varied_alone() -> None:
    rows = cells()
    core = len(CORE_TASKS) * len(CORE_BEHAVIOURS) * (len(STRATEGIES.built_in) - 1)  # all but the oracle
    alone = (len(TASKS) - len(CORE_TASKS) + len(BEHAVIOURS) - len(CORE_BEHAVIOURS)) * len(FEW)
    alone -= len(MATCHED) * len(FEW)
    alone += len(AVAILABILITY) * len(ABOUT_AVAILABILITY) + len(CORE_TASKS) * len(MATCHED) * len(WITH_MATCHES)
    alone -= len(FEW)  # the second part
    second = len(TRIED_BY_ALL) * (len(STRATEGIES.built_in) - 1) + (len(TASKS) - len(TRIED_BY_ALL)) * len(FEW)
    assert len(rows) == len(set(rows)) == core + alone + second
    for row in rows:
        check_settings(RunConfig.parse(row.settings))


def test_a_part_of_the_design_has_all_its_combinations_and_fedavg() -> None:
    rows = cells(("digits",), ("appeal", "defect"), ("maxfl",))
    assert [(row.behaviour, row.strategy) for row in rows] == [
        ("appeal", BASELINE),
        ("appeal", "maxfl"),
        ("defect", BASELINE),
        ("defect", "maxfl"),
    ]


def test_a_strategy_of_another_package_enters_by_name() -> None:
    name = "tests.server.test_run:Toy"
    found = {row.strategy for row in cells(("digits",), ("always",), (name,))}
    assert found == {BASELINE, name}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tasks": ("mnist",)}, "tasks = 'mnist' is not allowed: fmnist, movielens"),
        ({"behaviours": ("leave",)}, "behaviours = 'leave' is not allowed: appeal, defect"),
        ({"strategies": ("fedsgd",)}, "strategy = 'fedsgd' is not allowed"),
    ],
)
def test_an_unknown_name_is_one_line(given: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cells(**given)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_who_leaves_leaves_at_the_same_loss_with_each_strategy() -> None:
    served = TASKS["fmnist"].served_at
    for row in cells(("fmnist",), ("defect",)):
        settings = row.settings
        own = f"{row.strategy}.precision"
        assert settings.get(own, settings.get("defect.leave-below")) == served
