"""What a comparison finds, on histories written by hand."""

import math
from pathlib import Path

import pytest

from fedappeal.protocol.metric import Metric
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import CONFIG
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.measures import run_measures
from fedappeal.views.comparison.recorded_runs import read_runs
from fedappeal.views.comparison.result import Comparison, compare_runs
from fedappeal.views.comparison.table import comparison_tables
from tests.views.comparison.recorded import a_run, a_sweep


def compared(path: Path, baseline: str = "", each_run: bool = False) -> Comparison:
    (found,) = compare_runs(read_runs(path)[0], baseline, each_run)
    return found


def means(found: Comparison) -> dict[tuple[str, str], float]:
    return {(r.group.name, r.measure.key): r.interval.mean for r in found.results}


def test_the_numbers_of_one_run_by_hand(tmp_path: Path) -> None:
    a_run(
        tmp_path / "a",
        [{"accuracy": 0.5, "gm_appeal": 0.1, "left": 3}, {"joined": 2}, {"accuracy": 0.75, "asked": 0, "joined": 0}],
    )
    assert {key: mean for (_, key), mean in means(compared(tmp_path)).items()} == {
        "gm_appeal": 0.1,
        "accuracy": 0.75,
        "joined": 0.75,
        "left": 3,
        "failed": 0,
        "up": 1.5,
        "down": 3.0,
        "seconds": 1.5,
    }


def test_means_intervals_and_paired_differences_by_hand(tmp_path: Path) -> None:
    a_sweep(tmp_path, {"fedavg": [0.1, 0.2, 0.3], "maxfl": [0.3, 0.5, 0.7]})
    a_run(tmp_path / "z-only", [{"accuracy": 0.9}], strategy="maxfl", seed=9)
    found = compared(tmp_path)
    fedavg, maxfl = (result for result in found.results if result.measure.key == "accuracy")
    assert (fedavg.interval.n, fedavg.interval.mean, fedavg.difference) == (3, pytest.approx(0.2), None)
    assert (fedavg.interval.low, fedavg.interval.high) == pytest.approx((0.0565514, 0.5104494))  # s = 0.1
    assert (maxfl.interval.n, maxfl.interval.mean) == (4, pytest.approx(0.6))
    assert maxfl.difference is not None  # of seeds 0, 1 and 2: 0.2, 0.3, 0.4
    assert maxfl.difference.interval.mean == pytest.approx(0.3)
    assert maxfl.difference.interval.half == pytest.approx(0.2484138)
    assert (maxfl.difference.interval.n, maxfl.difference.wins, maxfl.difference.verdict) == (3, 3, "better")
    (other,) = [r for r in compared(tmp_path, "maxfl").results if r.measure.key == "accuracy" and r.difference]
    assert other.difference is not None
    assert (other.group.name, other.difference.wins, other.difference.verdict) == ("strategy=fedavg", 0, "worse")


def test_a_difference_is_undecided_where_the_correction_leaves_it_open(tmp_path: Path) -> None:
    numbers = {  # differences of accuracy 0.2, 0.3, 0.4 (p = 0.035); of the loss -0.9, -1, -1.1 (p = 0.0033)
        "fedavg": [{"accuracy": 0.1, "loss": 2.0}, {"accuracy": 0.2, "loss": 2.0}, {"accuracy": 0.3, "loss": 2.0}],
        "maxfl": [{"accuracy": 0.3, "loss": 1.1}, {"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.7, "loss": 0.9}],
        "fedadam": [{"accuracy": 0.1, "loss": 2.0}, {"accuracy": 0.2, "loss": 2.0}, {"accuracy": 0.4, "loss": 1.9}],
    }
    for strategy, lines in numbers.items():
        for seed, line in enumerate(lines):
            a_run(tmp_path / f"{strategy}-{seed}", [line], strategy=strategy, seed=seed)

    def verdicts(*measures: str) -> dict[tuple[str, str], str]:
        (found,) = compare_runs(read_runs(tmp_path)[0], measures=measures)
        of = [result for result in found.results if result.difference and result.difference.p != 1.0]
        return {(r.group.label, r.measure.key): r.difference.verdict for r in of if r.difference}

    every = verdicts()
    assert every["maxfl", "loss"] == "better", "4 * 0.0033 is below 0.05"
    assert every["maxfl", "accuracy"] == "undecided", "3 * 0.035 is not"
    assert {every["fedadam", key] for key in ("loss", "accuracy")} == {"undecided"}
    assert verdicts("accuracy")["maxfl", "accuracy"] == "undecided", "2 * 0.035"
    title = comparison_tables(compare_runs(read_runs(tmp_path)[0]))[1].title
    assert "; 4 tests at 95 %, Holm's correction over all of them" in title


def test_means_over_the_last_rounds_stand_beside_longer_runs_alone(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.0}, *[{"accuracy": 0.5}] * 10, *[{"accuracy": 0.75}] * 10])
    found = {key: mean for (_, key), mean in means(compared(tmp_path)).items()}
    assert (found["accuracy"], found["accuracy-late"]) == (0.75, pytest.approx(0.625))


@pytest.mark.parametrize(("key", "verdict"), [("loss", "worse"), ("accuracy", "better"), ("gm_appeal", "better")])
def test_the_better_direction(key: str, verdict: str, tmp_path: Path) -> None:
    a_sweep(tmp_path, {"fedavg": [0.1, 0.2, 0.3], "maxfl": [0.4, 0.5, 0.61]}, key)
    (found,) = [r for r in compared(tmp_path).results if r.measure.key == key and r.difference]
    assert found.difference is not None
    assert (found.difference.verdict, found.difference.wins) == (verdict, 3 if verdict == "better" else 0)


@pytest.mark.parametrize(
    ("other", "policies", "verdict", "row"),
    [
        ("maxfl", ("auto", "auto"), "better", None),
        ("maxfl", ("auto", "appeal"), "better", ("participation", "auto", "appeal")),  # FedAvg's is the same one
        ("maxfl", ("appeal", "defect"), "higher", ("participation", "appeal", "defect")),
        ("adagd", ("auto", "auto"), "higher", ("policy", "appeal", "defect")),
        ("fedalign", ("auto", "auto"), "higher", ("policy", "appeal", "match")),
    ],
)
def test_who_joins_more_is_better_only_under_the_same_policy(
    other: str, policies: tuple[str, str], verdict: str, row: tuple[str, ...] | None, tmp_path: Path
) -> None:
    for strategy, policy, joined in zip(("fedavg", other), policies, (1, 2), strict=True):
        for seed in range(9):
            path = tmp_path / f"{joined}-{strategy}-{seed}"
            a_run(path, [{"joined": joined}], strategy=strategy, participation=policy, seed=seed)
    found = compared(tmp_path)
    (result,) = [r for r in found.results if r.measure.key == "joined" and r.difference]
    assert result.difference is not None
    assert result.difference.verdict == verdict
    shown = [cells for cells in comparison_tables([found])[0].rows if cells[0] in ("policy", "participation")]
    assert shown == ([row] if row else [])


def test_another_metric_has_its_own_columns_and_direction(tmp_path: Path) -> None:
    a_sweep(tmp_path, {"fedavg": [1.0, 2.0, 3.0], "maxfl": [2.0, 3.0, 4.01]}, "rmse")
    metric = Metric("rmse", higher_is_better=False, high=math.inf)
    for folder in tmp_path.rglob(CONFIG):
        RunFolder(folder.parent, "").record(metric=metric.as_record())
    results = compared(tmp_path).results
    (found,) = [r for r in results if r.measure.key == "rmse" and r.difference]
    assert found.difference is not None
    assert (found.difference.verdict, found.measure.title, found.measure.percent) == ("worse", "test rmse", False)
    keys = [measure.key for measure in run_measures(metric)]
    assert {"worst_decile_rmse", "preferred_rmse", "unseen_rmse-late", "loss"} <= set(keys)
    assert not [key for key in keys if "accuracy" in key]
    assert len(keys) == len(set(keys))


def test_runs_that_are_not_finished_are_compared_after_the_last_common_round(tmp_path: Path) -> None:
    rounds = [{"accuracy": value / 10} for value in range(1, 7)]
    a_run(tmp_path / "a", rounds, strategy="fedavg")
    a_run(tmp_path / "b", rounds[:4], strategy="maxfl", rounds=6)
    a_run(tmp_path / "c", rounds[:5], strategy="maxfl", rounds=6, seed=1)
    a_run(tmp_path / "d", rounds[:2], strategy="fedavg", rounds=6, seed=1)
    RunFolder(tmp_path / "d", "").event("finished", round=2, reason="all left")
    found = compared(tmp_path)
    assert found.after == 4
    assert means(found)["strategy=fedavg", "accuracy"] == pytest.approx(0.3)  # 0.4 after round 4, 0.2 at its end
    assert means(found)["strategy=maxfl", "accuracy"] == pytest.approx(0.4)
    assert means(found)["strategy=fedavg", "seconds"] == pytest.approx(1.5)
    assert found.notes == (
        "not finished: b (round 4 of 6), c (round 5 of 6); all runs are compared after round 4",
        "fedavg: 1 of 2 runs ended early, in round 2: all left",
    )


def test_runs_of_different_length_that_are_finished_are_compared_at_their_ends(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.1}, {"accuracy": 0.2}])
    a_run(tmp_path / "b", [{"accuracy": 0.1}, {"accuracy": 0.2}, {"accuracy": 0.3}])
    found = compared(tmp_path)
    assert (found.after, found.notes) == (0, ())
    assert means(found)["rounds=2", "accuracy"] == 0.2
    assert means(found)["rounds=3", "accuracy"] == 0.3


def test_a_diverged_model_is_in_no_mean_and_is_named(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.5, "loss": 1.0, "evaluated": 3, "expected": 3}], seed=0)
    a_run(tmp_path / "b", [{"accuracy": 0.1}, {"evaluated": 1, "expected": 3}], seed=1, rounds=1)
    found = compared(tmp_path)
    (result,) = [r for r in found.results if r.measure.key == "accuracy"]
    assert (result.interval.mean, result.interval.n) == (0.5, 1)
    assert found.notes == ("maxfl, seed 1: 1 of 3 clients measured the last model",)


def test_tasks_are_compared_apart(tmp_path: Path) -> None:
    for task, shift in (("digits", 0.0), ("synth", 0.4)):
        a_sweep(tmp_path / task, {"fedavg": [0.1 + shift], "maxfl": [0.2 + shift]}, task=task)
    digits, synth = compare_runs(read_runs(tmp_path)[0], "maxfl")
    assert digits.baseline.name == "task=digits strategy=maxfl"
    (found,) = [r for r in synth.results if r.measure.key == "accuracy" and r.difference]
    assert found.difference is not None
    assert (found.group.name, found.difference.interval.mean) == ("task=synth strategy=fedavg", pytest.approx(-0.1))
    assert (found.difference.verdict, found.difference.interval.half) == ("", None)
    with pytest.raises(ConfigError, match="baseline = 'digits' is not allowed: 2 groups fit"):
        compare_runs(read_runs(tmp_path)[0], "digits")


def test_no_common_seed_no_difference(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.5}], seed=0, strategy="fedavg")
    a_run(tmp_path / "b", [{"accuracy": 0.5}], seed=1)
    assert [r.difference for r in compared(tmp_path).results if r.measure.key == "accuracy"] == [None, None]


def test_runs_of_one_seed_are_named(tmp_path: Path) -> None:
    a_run(tmp_path / "a", [{"accuracy": 0.5}])
    a_run(tmp_path / "b", [{"accuracy": 0.6}])
    found = compared(tmp_path)
    assert found.notes == ("maxfl: 2 runs, 1 seed: runs of one seed count as one, by their mean",)
    assert means(found)["strategy=maxfl", "accuracy"] == pytest.approx(0.55)
    assert means(compared(tmp_path, each_run=True))["run=b", "accuracy"] == 0.6
