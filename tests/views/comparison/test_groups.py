"""Which runs are a group, and what it is called."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.runs.launch.in_process import simulate_quietly
from fedappeal.runs.plan import swept_plans
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.simulation.options import Simulation
from fedappeal.views.comparison.measures import Measure, last
from fedappeal.views.comparison.recorded_runs import RecordedRun, read_runs
from fedappeal.views.comparison.result import Group, choose_baseline, group_runs, text_of, used_settings
from server.build import run_plugins
from tests.views.comparison.recorded import a_run, a_sweep

ACCURACY = Measure("accuracy", "accuracy", last("accuracy"))


def recorded(name: str = "a", lines: tuple[dict[str, float], ...] = ({"round": 1},), **given: object) -> RecordedRun:
    return RecordedRun(name, run_plugins(RunConfig.parse(given)).all_settings(), lines)


def names(runs: list[RecordedRun], each_run: bool = False) -> dict[str, list[str]]:
    return {group.name: [run.name for run in group.runs] for task in group_runs(runs, each_run) for group in task}


def test_runs_that_differ_in_their_seeds_alone_are_one_group() -> None:
    runs = [recorded("a", seed=0, out="x"), recorded("b", seed=1, out="y", **{"start-timeout": 5.0})]
    assert names(runs) == {"strategy=maxfl": ["a", "b"]}
    assert group_runs(runs)[0][0].seeds == [0, 1]


def test_a_group_is_called_by_what_differs() -> None:
    runs = [
        recorded("a", strategy="maxfl", rounds=30, seed=0),
        recorded("b", strategy="fedavg", rounds=30, seed=0),
        recorded("c", strategy="maxfl", rounds=30, seed=1, participation="always"),
    ]
    assert names(runs) == {
        "strategy=maxfl participation=auto": ["a"],
        "strategy=fedavg participation=auto": ["b"],
        "strategy=maxfl participation=always": ["c"],
    }


def test_a_plugins_setting_that_a_run_does_not_use_splits_no_group() -> None:
    runs = [
        recorded(f"{strategy}-{rate}-{seed}", strategy=strategy, seed=seed, **{"maxfl.server-lr": rate})
        for strategy in ("fedavg", "maxfl")
        for rate in (0.5, 1)
        for seed in (0, 1)
    ]
    assert names(runs) == {
        "strategy=fedavg": ["fedavg-0.5-0", "fedavg-0.5-1", "fedavg-1-0", "fedavg-1-1"],
        "strategy=maxfl maxfl.server-lr=0.5": ["maxfl-0.5-0", "maxfl-0.5-1"],
        "strategy=maxfl maxfl.server-lr=1": ["maxfl-1-0", "maxfl-1-1"],
    }


def test_a_default_and_the_same_number_given_are_one_group() -> None:
    assert names([recorded("a"), recorded("b", seed=1, **{"maxfl.server-lr": 1})]) == {"strategy=maxfl": ["a", "b"]}
    assert [text_of(value) for value in (1, 1.0, 0.5, 1e-5, -1e30, True, "", "x", [1])] == [
        *("1", "1", "0.5", "1e-05", "-1e+30", "true", "''", "x", "[1]")
    ]


def test_a_run_records_the_settings_that_it_uses_before_the_others() -> None:
    """`used_settings` reads that order, also after a resumed run has written its settings again."""
    settings = run_plugins(
        RunConfig.parse({"maxfl.stabilizer": 0.1, "defect.leave-below": 0.5, "rounds": 3})
    ).all_settings()
    again = run_plugins(RunConfig.parse({**settings, "rounds": 5})).all_settings()
    for record in (settings, again, json.loads(json.dumps(again))):
        used = used_settings(record)
        assert {key for key in used if "." in key} == {
            *(
                "maxfl.server-lr",
                "maxfl.stabilizer",
                "maxfl.step-sizes",
                "solo.steps",
                "solo.effort",
                "solo.learning-rate",
            )
        }
        assert "defect.leave-below" in record
        assert used.keys() >= set(RunConfig.keys())
    assert used_settings(dict(sorted(again.items()))).keys() == again.keys()  # of that order nothing is known


def test_a_setting_that_older_runs_do_not_record_tells_only_newer_ones_apart() -> None:
    old, one, two = (recorded(name) for name in ("old", "one", "two"))
    for run, value in ((one, 1), (two, 2)):
        run.settings["new-setting"] = value  # type: ignore[index]
    assert names([old, one]) == {"strategy=maxfl": ["old", "one"]}
    assert names([old, one, two]) == {"strategy=maxfl": ["old"], "new-setting=1": ["one"], "new-setting=2": ["two"]}


def test_tasks_stay_apart() -> None:
    runs = [
        recorded("a", task="digits"),
        recorded("b", task="synth", strategy="fedavg", **{"learning-rate": 0.01}),
        recorded("c", task="synth", **{"learning-rate": 0.01}),
        recorded("d", task="digits", strategy="fedavg"),
    ]
    assert names(runs) == {
        "task=digits strategy=maxfl": ["a"],
        "task=digits strategy=fedavg": ["d"],
        "task=synth strategy=fedavg": ["b"],
        "task=synth strategy=maxfl": ["c"],
    }


def test_each_run_by_itself() -> None:
    assert names([recorded("x/a"), recorded("x/b")], each_run=True) == {"run=x/a": ["x/a"], "run=x/b": ["x/b"]}
    assert names([recorded("x")], each_run=True) == {"run=x": ["x"]}


SETTINGS = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["maxfl", "fedavg", "fedprox"]),
        "rounds": st.sampled_from([10, 20]),
        "seed": st.integers(0, 3),
        "maxfl.server-lr": st.sampled_from([0.5, 1.0]),
        "fedprox.proximal-mu": st.sampled_from([0.1, 0.2]),
    }
)
USES = {"maxfl": "maxfl.server-lr", "fedprox": "fedprox.proximal-mu"}


@given(st.lists(SETTINGS, min_size=1, max_size=8), st.randoms())
def test_runs_are_together_where_all_that_they_use_is_equal(given_: list[dict[str, Any]], random: Any) -> None:
    def used(settings: dict[str, Any]) -> tuple[Any, ...]:
        strategy = settings["strategy"]
        return strategy, settings["rounds"], settings.get(USES.get(strategy, ""))

    runs = [recorded(str(n), **settings) for n, settings in enumerate(given_)]
    expected = {frozenset(str(m) for m, b in enumerate(given_) if used(a) == used(b)) for a in given_}
    found = names(runs)
    assert {frozenset(members) for members in found.values()} == expected
    shuffled = list(runs)
    random.shuffle(shuffled)
    assert {name: sorted(members) for name, members in names(shuffled).items()} == {
        name: sorted(members) for name, members in found.items()
    }


def test_a_seed_counts_once(tmp_path: Path) -> None:
    run = {
        n: recorded(str(n), ({"round": 1, "accuracy": value},), seed=seed)
        for n, (seed, value) in enumerate([(0, 0.25), (0, 0.75), (1, 0.5), (2, float("nan"))])
    }
    group = Group("digits", (("strategy", "maxfl"),), tuple(run.values()))
    assert group.by_seed(ACCURACY) == {0: 0.5, 1: 0.5}
    assert group.seeds == [0, 1, 2]


def test_the_baseline_by_name_setting_or_value() -> None:
    runs = [recorded(strategy=strategy, rounds=rounds) for strategy in ("maxfl", "fedavg") for rounds in (10, 20)]
    (groups,) = group_runs(runs)
    for unnamed in ("", None):
        assert choose_baseline(groups, unnamed) is groups[2], "FedAvg's first"
    assert choose_baseline(groups[:2], "") is groups[0]
    assert [group.label for group in groups[1:3]] == ["maxfl rounds=20", "fedavg rounds=10"]
    for name in ("strategy=fedavg rounds=20", "rounds=20 strategy=fedavg", "fedavg rounds=20", "20 fedavg"):
        assert choose_baseline(groups, name) is groups[3]
    with pytest.raises(ConfigError, match="'fedavg' is not allowed: 2 groups fit: strategy=fedavg rounds=10; "):
        choose_baseline(groups, "fedavg")
    with pytest.raises(ConfigError, match="baseline = 'x' is not allowed: no group fits: strategy=maxfl rounds=10; "):
        choose_baseline(groups, "x")


def test_real_runs_of_a_sweep(tmp_path: Path) -> None:
    settings = {"task": "synth", "clients": 3, "local-steps": 1, "solo.steps": 2, "mandatory-rounds": 1}
    sweep = ["seed=0,1", "strategy=maxfl,fedavg", "maxfl.server-lr=0.5,1"]
    for plan in swept_plans(settings, sweep, str(tmp_path)):
        simulate_quietly(plan, Simulation(threads=1))
    runs, empty = read_runs(tmp_path)
    (groups,) = group_runs(runs)
    assert (len(runs), empty) == (8, [])
    assert {group.name: (len(group.runs), group.seeds) for group in groups} == {
        "strategy=fedavg": (4, [0, 1]),
        "strategy=maxfl maxfl.server-lr=0.5": (2, [0, 1]),
        "strategy=maxfl maxfl.server-lr=1": (2, [0, 1]),
    }
    twins = [run for run in groups[0].runs if run.seed == 0]
    assert twins[0].lines[-1]["accuracy"] == twins[1].lines[-1]["accuracy"]  # the same run twice


def test_folders_written_by_hand(tmp_path: Path) -> None:
    a_sweep(tmp_path, {"maxfl": [0.5, 0.6], "fedavg": [0.4, 0.3]})
    a_run(tmp_path / "mixed", [{}], participation="appeal=0.5,always=0.5")
    assert list(names(read_runs(tmp_path)[0])) == [
        "strategy=maxfl participation=appeal=0.5,always=0.5",
        "strategy=fedavg participation=auto",
        "strategy=maxfl participation=auto",
    ]
