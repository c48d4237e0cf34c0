"""The tables' arithmetic, against numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.lines import EVENTS
from fedappeal.studies.experiment import Arm, Claim, Contrast, Experiment, Numbers, Quick, Results, RunResult
from fedappeal.studies.table import diverged_runs, numbers_table, verdict_table, with_spread
from fedappeal.studies.verdict import verdicts
from fedappeal.views.comparison.measures import Measure, best, joined_share, last, late, total
from strategies.rounds.sums.last_good import DIVERGED
from tests.studies.small import computed

LINES = [
    {"round": 1, "asked": 4, "joined": 4, "accuracy": 0.9, "bytes_up": 100},
    {"round": 2, "asked": 4, "joined": 1, "bytes_up": 10},
    {"round": 3, "asked": 2, "joined": 0, "accuracy": 0.2, "bytes_up": 1},
    {"round": 4, "asked": 2, "joined": 1, "accuracy": 0.4, "bytes_up": 0},
    {"round": 5, "asked": 0, "joined": 0, "bytes_up": 0},
]


def test_readings_by_hand() -> None:
    assert last("accuracy")(LINES) == 0.4
    assert late("accuracy", 3)(LINES) == pytest.approx(0.3)  # rounds 3 and 4; 5 was not evaluated
    assert late("accuracy", 1)(LINES) is None
    assert late("accuracy", 20)(LINES) == pytest.approx(0.5)
    assert best("accuracy")(LINES) == 0.9
    assert total("bytes_up")(LINES) == 111
    assert joined_share()(LINES) == pytest.approx(6 / 12)
    assert joined_share(3)(LINES) == pytest.approx(1 / 4)
    assert joined_share(after=1)(LINES) == pytest.approx(2 / 8)
    assert joined_share(after=5)(LINES) is None
    for reading in (last("loss"), late("loss", 20), best("loss"), total("loss"), joined_share(1)):
        assert reading(LINES) is None
    for reading in (last("accuracy"), late("accuracy", 20), best("accuracy"), joined_share()):
        assert reading([]) is None


def test_a_model_that_diverged_is_not_spoken_for_by_the_rounds_before() -> None:
    lines: list[dict[str, Any]] = [*LINES, {"round": 6, "evaluated": 0, "expected": 3, "bytes_up": 7}]
    assert last("accuracy")(lines) is None
    assert late("accuracy", 20)(lines) is None
    assert last("bytes_up")(lines) == late("bytes_up", 1)(lines) == 7
    recovered = [*lines, {"round": 30, "accuracy": 0.7, "evaluated": 2, "expected": 3}]
    assert last("accuracy")(recovered) == late("accuracy", 20)(recovered) == 0.7
    assert late("accuracy", 25)(recovered) is None
    arm, accuracy = Arm("a"), Measure("accuracy", "", last("accuracy"))
    few = [*LINES, {"round": 6, "accuracy": 0.9, "evaluated": 2, "expected": 5}]
    assert RunResult(arm, 0, few, Path()).number(accuracy) is None, "fewer than half of them do not speak for all"
    half = [*LINES, {"round": 6, "accuracy": 0.9, "evaluated": 2, "expected": 4}]
    assert RunResult(arm, 0, half, Path()).number(accuracy) == 0.9


def test_a_share_is_shown_in_per_cent() -> None:
    assert Measure("a", "a", last("accuracy"), percent=True).number(LINES) == pytest.approx(40.0)
    assert Measure("a", "a", last("loss"), percent=True).number(LINES) is None


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, 2.0, 4.0], "2.33 ± 1.53"),  # variance ((4/3)^2 + (1/3)^2 + (5/3)^2) / 2 = 7/3
        ([5.0], "5.00"),
        ([-0.001], "0.00"),
        ([-0.5, -0.5], "-0.50 ± 0.00"),
    ],
)
def test_mean_and_spread(values: list[float], shown: str) -> None:
    assert with_spread(values, len(values), 2) == shown


@pytest.mark.parametrize(("paper", "shown"), [((0.004, 0.0), "0.004"), ((43.7, 0.02), "43.70"), (22, "22.00")])
def test_the_papers_number_keeps_all_its_digits(paper: float | tuple[float, float], shown: str) -> None:
    arms = (Arm("a", {}, {"value": paper}),)
    made = experiment(arms=arms, measures=(Measure("value", "value", last("loss")),))
    table = numbers_table(results((0, 0, 0.5, 1.0), of=made), arms)
    assert table.rows[0][1] == f"1.00 ({shown})"


ACCURACY = (
    Measure("accuracy", "accuracy %", last("accuracy"), percent=True),
    Measure("accuracy-late", "accuracy %, last 20 rounds", late("accuracy", 20), percent=True, beside="accuracy"),
)
LOSS = Measure("loss", "loss", last("loss"), better="lower", digits=1)
ARMS = (
    Arm("ours", {}, {"accuracy": (70.86, 2.18)}, "as printed", label="MaxFL"),
    Arm("other", {}, {}, "as printed"),
    Arm("absent", {}, {"accuracy": 50.0}, "otherwise"),
)


def experiment(**changed: object) -> Experiment:
    given: dict[str, object] = {
        "name": "one",
        "title": "One",
        "source": "here",
        "claim": "",
        "settings": {},
        "arms": ARMS,
        "measures": (*ACCURACY, LOSS),
        "quick": Quick(),
    }
    return Experiment(**{**given, **changed})  # type: ignore[arg-type]


def results(*found: tuple[int, int, float, float | None], of: Experiment | None = None) -> Results:
    """Return results from (arm, seed, last accuracy, loss); the accuracy of the round before is 0.1 lower."""
    made = of or experiment()
    runs = []
    for arm, seed, accuracy, loss in found:
        lines = [{"round": 1, "accuracy": accuracy - 0.1}, {"round": 2, "accuracy": accuracy, "loss": loss}]
        runs.append(RunResult(made.arms[arm], seed, lines, Path(".")))
    return Results(made, tuple(runs))


def test_ours_and_the_papers() -> None:
    table = numbers_table(results((0, 0, 0.5, 2.0), (0, 1, 0.6, 4.0), (1, 0, 0.3, None)), ARMS)
    assert table.title == "Ours, mean ± deviation over seeds (the paper's)"
    assert table.header == ("", "accuracy %, last 20 rounds", "loss")
    assert table.rows == (
        ("as printed",),
        # of 45 and 55: mean 50, deviation sqrt((5^2 + 5^2) / 1)
        ("MaxFL", "50.00 ± 7.07 (70.86)", "3.0 ± 1.4"),
        ("other", "25.00", "-"),
        ("otherwise",),
        ("absent", "- (50.00)", "-"),
    )


def test_claims_that_fill_a_table_stand_in_columns() -> None:
    made = experiment(
        claims=tuple(
            Claim(f"{arm}: {text}", Contrast((arm, key), bound), "as printed", ours=bound > 1)
            for arm in ("ours", "other")
            for text, key, bound in (("accurate", "accuracy", 0.0), ("lossy", "loss", 1.5))
        )
    )
    found = results((0, 0, 0.5, 2.0), (0, 1, 0.5, 2.0), (1, 0, 0.3, 1.0), (1, 1, 0.3, 1.0), of=made)
    assert verdict_table(verdicts(found)).header == ("", "accurate", "lossy")
    assert verdict_table(verdicts(found)).rows == (
        ("as printed",),
        ("ours", "same direction, smaller: +50.0, paper +70.9", "reproduced: +0.50 (ours)"),
        ("other", "reproduced: +30.0", "not reproduced: -0.50 (ours)"),
    )
    assert verdict_table(verdicts(found)[:3]).rows[-1] == ("other: accurate", "reproduced", "+30.0", "-")


def test_rows_without_a_group_do_not_seem_to_be_of_another() -> None:
    made = experiment(claims=tuple(Claim(t, lambda n: n("ours", "loss"), g) for t, g in (("a", "x"), ("b", ""))))
    table = verdict_table(verdicts(results((0, 0, 0.5, 1), of=made)))
    assert [row[0] for row in table.rows] == ["b", "x", "a"]


def test_runs_that_diverged_are_named_and_counted(tmp_path: Path) -> None:
    made = experiment()
    arm = made.arms[0]
    ends = [{"accuracy": 0.5, "evaluated": 3}, {"evaluated": 0}, {"accuracy": 0.7, "evaluated": 2}]
    ends += [{"accuracy": 0.6, "evaluated": 3}] * 2
    lines = [[{"round": 9, "expected": 3, **end}] for end in ends]
    paths = [tmp_path / str(seed) for seed in range(5)]
    for path, reason in zip(paths, ["", DIVERGED, "", DIVERGED, "every client is satisfied"], strict=True):
        path.mkdir()
        (path / EVENTS).write_text(json.dumps({"event": "finished", "round": 9, "reason": reason}) + "\n")
    found = Results(made, tuple(RunResult(arm, n, lines[n], path) for n, path in enumerate(paths)))
    row = next(row for row in numbers_table(found, made.arms).rows if row[0] == arm.shown)
    assert row[1] == "60.00 ± 8.16 (4 of 5) (70.86)"  # variance (10^2 + 10^2) / 3
    assert diverged_runs(found.runs) == {1: ("9", "0 of 3"), 2: ("9", "2 of 3"), 3: ("9", "3 of 3")}
    assert diverged_runs(found.runs[:1]) == {}


def test_claims_are_counted_by_seed_where_both_were_measured() -> None:
    def better(number: Numbers) -> float:
        return number("ours", "accuracy") - number("other", "accuracy")

    made = experiment(
        claims=(Claim("ours is first", better, "as printed"), Claim("absent", lambda n: n("absent", "loss")))
    )
    found = results((0, 0, 0.5, 1), (0, 1, 0.6, 1), (0, 2, 0.7, 1), (1, 0, 0.6, 1), (1, 1, 0.5, 1), of=made)
    (verdict,) = verdicts(found)
    assert (verdict.margins, verdict.unmeasured) == (pytest.approx({0: -10, 1: 10}), 1)
    assert verdicts(results((1, 0, 0.5, 1), of=made)) == []


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"arms": (Arm("a"), Arm("a"))}, "arm {'a'} is there twice"),
        ({"arms": (Arm("a", {}, {"f1": 1.0}),)}, "a has numbers for {'f1'}"),
        ({"quick": Quick(arms=("b",))}, "quick names {'b'}"),
        ({"criterion": "f1"}, "criterion f1"),
        ({"measures": (LOSS, Measure("x", "x", last("x"), beside="y"))}, "x stands beside y"),
    ],
)
def test_an_experiment_that_contradicts_itself(changed: dict[str, object], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line.replace("{", r"\{").replace("}", r"\}")):
        computed(tmp_path, **changed)
