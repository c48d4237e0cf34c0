"""The fixed design: which rows there are, and that each is a run's settings."""

from collections import Counter

import pytest

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.studies.bench.design import (
    BASELINE,
    BEHAVIOURS,
    CORE,
    DESIGNED,
    OTHER_SEEDS,
    RATES,
    SEEDS,
    TASKS,
    Cell,
    cells,
)
from server.build import check_settings


def test_the_core_has_four_levels_and_each_other_behaviour_is_varied_alone() -> None:
    rows = cells()
    core = [row for row in rows if row.behaviour == CORE]
    assert Counter((row.task, row.strategy) for row in core) == {(t, s): 4 for t in TASKS for s in DESIGNED}
    assert all(0 in task.goodwill and len(set(task.goodwill)) == 4 for task in TASKS.values())
    floors = [row for row in rows if row.behaviour in RATES]
    assert Counter(row.behaviour for row in floors) == dict.fromkeys(RATES, len(TASKS))
    others = len(BEHAVIOURS) - len(RATES) - 1
    assert len(rows) == len(set(rows)) == len(core) + len(floors) + others * len(DESIGNED)
    assert sum(row.seeds for row in rows) == len(core) * SEEDS + (len(rows) - len(core)) * OTHER_SEEDS
    for row in rows:
        assert check_settings(RunConfig.parse(row.settings)).config.judge_on == "held-out"
        assert Cell.of_key(row.key) == row


def test_a_part_of_the_design_has_all_its_combinations_and_fedavg() -> None:
    rows = cells(("digits",), ("defect", "everyone"), ("maxfl",))
    assert [(row.behaviour, row.strategy) for row in rows] == [
        ("defect", BASELINE),
        ("defect", "maxfl"),
        ("everyone", BASELINE),
    ]


def test_a_strategy_of_another_package_enters_by_name() -> None:
    name = "tests.server.test_server_run:Toy"
    assert {row.strategy for row in cells(("digits",), (CORE,), (name,))} == {BASELINE, name}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tasks": ("mnist",)}, "tasks = 'mnist' is not allowed: chem97, digits"),
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
