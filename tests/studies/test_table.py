"""The tables' arithmetic, against numbers worked out by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fedappeal.record.files import EVENTS
from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, Results, RunResult
from fedappeal.studies.table import (
    Spread,
    claims_table,
    diverged_runs,
    diverged_table,
    nearness_table,
    ranking_table,
    result_tables,
    seeds_table,
)
from fedappeal.studies.verdict import Verdict, verdicts
from fedappeal.views.comparison.measures import Measure, best, both, joined_share, last, late, total
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
    assert late("accuracy")(LINES) == pytest.approx(0.5)
    assert best("accuracy")(LINES) == 0.9
    assert total("bytes_up")(LINES) == 111
    assert joined_share()(LINES) == pytest.approx(6 / 12)
    assert joined_share(3)(LINES) == pytest.approx(1 / 4)
    assert joined_share(after=1)(LINES) == pytest.approx(2 / 8)
    assert joined_share(after=5)(LINES) is None
    for reading in (last("loss"), late("loss"), best("loss"), total("loss"), joined_share(1)):
        assert reading(LINES) is None
    for reading in (last("accuracy"), late("accuracy"), best("accuracy"), joined_share()):
        assert reading([]) is None


def test_a_model_that_diverged_is_not_spoken_for_by_the_rounds_before() -> None:
    lines: list[dict[str, Any]] = [*LINES, {"round": 6, "evaluated": 0, "expected": 3, "bytes_up": 7}]
    assert last("accuracy")(lines) is None
    assert late("accuracy")(lines) is None
    assert last("bytes_up")(lines) == late("bytes_up", 1)(lines) == 7
    recovered = [*lines, {"round": 30, "accuracy": 0.7, "evaluated": 2, "expected": 3}]
    assert last("accuracy")(recovered) == late("accuracy", 20)(recovered) == 0.7
    assert late("accuracy", 25)(recovered) is None
    arm, accuracy = Arm("a"), Measure("accuracy", "", last("accuracy"))
    few = [*LINES, {"round": 6, "accuracy": 0.9, "evaluated": 2, "expected": 5}]
    assert RunResult(arm, 0, {}, few, Path()).number(accuracy) is None, "fewer than half of them do not speak for all"
    half = [*LINES, {"round": 6, "accuracy": 0.9, "evaluated": 2, "expected": 4}]
    assert RunResult(arm, 0, {}, half, Path()).number(accuracy) == 0.9


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
    assert Spread.of(values).show(2) == shown


@pytest.mark.parametrize(
    ("paper", "shown"), [((0.004, 0.0), "0.004 ± 0.000"), ((43.7, 0.02), "43.70 ± 0.02"), (22, "22.00")]
)
def test_the_papers_number_keeps_all_its_digits(paper: float | tuple[float, float], shown: str) -> None:
    arms = (Arm("a", {}, {"value": paper}),)
    made = experiment(arms=arms, measures=(Measure("value", "value", last("loss")),))
    (table,) = result_tables(results((0, 0, 0.5, 1.0), of=made), arms)
    assert table.rows[0][2] == shown


ACCURACY = both("accuracy", "accuracy %", "accuracy", percent=True)
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
        "quick": Quick({}),
    }
    return Experiment(**{**given, **changed})  # type: ignore[arg-type]


def results(*found: tuple[int, int, float, float | None], of: Experiment | None = None) -> Results:
    """Return results from (arm, seed, last accuracy, loss); the accuracy of the round before is 0.1 lower."""
    made = of or experiment()
    runs = []
    for arm, seed, accuracy, loss in found:
        lines = [{"round": 1, "accuracy": accuracy - 0.1}, {"round": 2, "accuracy": accuracy, "loss": loss}]
        runs.append(RunResult(made.arms[arm], seed, {}, lines, Path(".")))
    return Results(made, tuple(runs))


def test_ours_the_papers_and_the_difference() -> None:
    against, rest = result_tables(results((0, 0, 0.5, 2.0), (0, 1, 0.6, 4.0), (1, 0, 0.3, None)), ARMS)
    assert against.title == "accuracy %"
    assert against.header == ("", "ours", "paper", "difference", "ours, last 20 rounds", "difference")
    assert against.rows == (
        ("as printed",),
        # mean 55, deviation sqrt((5^2 + 5^2) / 1); over both rounds 50
        ("MaxFL", "55.00 ± 7.07", "70.86 ± 2.18", "-15.86", "50.00 ± 7.07", "-20.86"),
        ("other", "30.00", "-", "-", "25.00", "-"),
        ("otherwise",),
        ("absent", "-", "50.00", "-", "-", "-"),
    )
    assert rest.header == ("", "loss")
    assert rest.rows[1:3] == (("MaxFL", "3.0 ± 1.4"), ("other", "-"))


def test_the_nearest_reading_by_hand() -> None:
    arms = (
        Arm("a", {}, {"accuracy": 50.0}, "first", label="one"),
        Arm("b", {}, {"accuracy": 40.0}, "first", label="two"),
        Arm("c", {}, {"accuracy": 50.0}, "second", label="one"),
        Arm("d", {}, {"accuracy": 40.0}, "second", label="two"),
        Arm("e", {}, {"accuracy": 90.0}, "second", label="three"),
        Arm("f", {}, {}, "second", label="four"),
        Arm("g", {}, {"accuracy": 10.0}, "third", label="one"),
    )
    made = experiment(arms=arms)
    runs = [(0, 0, 0.52, 1), (0, 1, 0.54, 1), (1, 0, 0.39, 1), (2, 0, 0.42, 1), (3, 0, 0.44, 1)]
    found = results(*runs, (4, 0, 0.1, 1), (5, 0, 0.1, 1), of=made)
    table = nearness_table(found, arms)
    assert table is not None
    assert table.header == ("", "accuracy %")
    # |53 - 50| and |39 - 40|: 2; |42 - 50| and |44 - 40|: 6. "three" is in one group alone, "third" was not run.
    assert table.rows == (("first", "2.00 (2 rows)"), ("second", "6.00 (2 rows)"))
    apart = nearness_table(results((1, 0, 0.39, 1), (4, 0, 0.1, 1), of=made), arms)
    assert apart is None, "groups without a row in common are not readings of one thing"
    assert nearness_table(results((0, 0, 0.5, 1)), ARMS) is None, "one group alone is not nearer than another"


def test_a_row_that_is_anothers_twin_is_not_counted_twice() -> None:
    arms = tuple(
        Arm(f"{row}{group}", {}, {"accuracy": 50.0}, group, label=row) for group in "xy" for row in ("a", "twin")
    )
    found = results((0, 0, 0.52, 1), (1, 0, 0.9, 1), (2, 0, 0.56, 1), (3, 0, 0.9, 1), of=experiment(arms=arms))
    alone = dataclasses.replace(found, experiment=experiment(arms=arms, twins=("twin",)))
    rows = [nearness_table(one, arms) for one in (found, alone)]
    assert [table.rows if table else None for table in rows] == [
        (("x", "21.00 (2 rows)"), ("y", "23.00 (2 rows)")),  # (2 + 40) / 2, (6 + 40) / 2
        (("x", "2.00 (1 row)"), ("y", "6.00 (1 row)")),
    ]


def test_readings_are_ranked_by_the_gap() -> None:
    def verdict(group: str, gap: float, paper: float | None = 27.0, among: int = 4) -> Verdict:
        return Verdict(Claim("it is first", lambda _: gap, group, "points", among=among), (gap,), 0, paper)

    found = [verdict("far", -1.0), verdict("near", 20.0), verdict("beyond", 40.0), verdict("no paper", 27.0, None)]
    table = ranking_table([*found, verdict("no rank", 27.0, among=0)])
    assert table is not None
    assert [row[0] for row in table.rows] == ["it is first", "near", "beyond", "far"]
    assert ranking_table(found[:1]) is None, "a single reading has no rank"


def test_what_the_number_of_seeds_changes_by_hand() -> None:
    arms = (
        Arm("a", {}, {"accuracy": 50.0, "loss": 2.0}, "first", label="one"),
        Arm("b", {}, {"accuracy": (40.0, 1.5)}, "first", label="two"),
        Arm("c", {}, {}, "first", label="three"),
        Arm("d", {}, {"accuracy": 50.0}, "second", label="one"),
    )
    made = experiment(arms=arms)
    # Over both rounds the accuracy is 0.05 lower than the last.
    one = [(0, seed, accuracy, loss) for seed, accuracy, loss in ((0, 0.55, 1.0), (1, 0.65, 2.0), (2, 0.60, 6.0))]
    two = [(1, seed, accuracy, None) for seed, accuracy in enumerate((0.41, 0.41, 0.53))]
    others = [(2, 0, 0.9, 1.0), (3, 0, 0.1, 1.0)]
    table = seeds_table(results(*one, *two, *others, of=made), arms)
    assert table is not None
    assert table.title == "What the number of seeds changes, for the first group of rows"
    assert table.header == ("", "1 seed", "the first 3 seeds", "paper")
    assert table.rows == (
        ("accuracy %, last 20 rounds",),
        ("one", "50.00", "55.00 ± 5.00", "50.00"),  # 50, 60, 55
        ("two", "36.00", "40.00 ± 6.93", "40.00 ± 1.50"),  # 36, 36, 48: variance (16 + 16 + 64) / 2
        ("mean size of the differences (2 rows)", "2.00", "2.50", "-"),  # (0 + 4) / 2, (5 + 0) / 2
        ("loss",),
        ("one", "1.0", "3.0 ± 2.6", "2.0"),
        ("mean size of the differences (1 row)", "1.0", "1.0", "-"),
    )
    four = seeds_table(results(*one, *two, (0, 3, 0.75, 3.0), of=made), arms)
    assert four is not None
    assert four.header == ("", "1 seed", "the first 3 seeds", "the first 4 seeds", "paper")
    assert four.rows[1][1:] == ("50.00", "55.00 ± 5.00", "58.75 ± 8.54", "50.00")  # 50, 60, 55, 70


def test_a_row_without_its_first_seed_is_not_counted_in_what_seeds_change() -> None:
    arms = (Arm("a", {}, {"loss": 2.0}), Arm("b", {}, {"loss": 9.0}))
    found = [(0, 0, 0.5, 1.0), (0, 1, 0.5, 2.0), (0, 2, 0.5, 6.0), (1, 1, 0.5, 5.0), (1, 2, 0.5, 7.0)]
    made = experiment(arms=arms)
    table = seeds_table(results(*found, of=made), arms)
    assert table is not None
    assert table.title == "What the number of seeds changes"
    assert table.rows[1:] == (
        ("a", "1.0", "3.0 ± 2.6", "2.0"),
        ("b", "-", "6.0 ± 1.4", "9.0"),
        ("mean size of the differences (1 row)", "1.0", "1.0", "-"),
    )
    assert seeds_table(results(*found[:2], of=made), arms) is None, "two seeds"
    bare = (Arm("a"), Arm("b"))
    assert seeds_table(results(*found, of=experiment(arms=bare)), bare) is None, "the paper has no numbers"
    assert seeds_table(results(of=made), arms) is None


def test_a_claim_about_a_model_that_diverged_is_counted_as_such() -> None:
    made = experiment(claims=(Claim("it is small", lambda n: 9 - n("ours", "loss"), "as printed"),))
    one = results((0, 0, 0.5, 1), (0, 1, 0.5, None), (0, 2, 0.5, 9), of=made)
    table = claims_table(verdicts(one))
    assert table is not None
    # 8 and 0: mean 4, deviation sqrt(32), t 12.706: 12.706 sqrt(32 / 2)
    words = "level, 1 of 2 seeds (1 without a number), gap +4.0 (95 % interval -46.8 to +54.8)"
    assert table.rows[1] == ("it is small", words)
    none = claims_table(verdicts(results((0, 0, 0.5, None), of=made)))
    assert none is not None
    assert none.rows[1] == ("it is small", "not measured: 1 seed without a number")


def test_rows_without_a_group_do_not_seem_to_be_of_another() -> None:
    made = experiment(claims=tuple(Claim(t, lambda n: n("ours", "loss"), g) for t, g in (("a", "x"), ("b", ""))))
    table = claims_table(verdicts(results((0, 0, 0.5, 1), of=made)))
    assert table is not None
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
    found = Results(made, tuple(RunResult(arm, n, {}, lines[n], path) for n, path in enumerate(paths)))
    row = next(row for row in result_tables(found, made.arms)[0].rows if row[0] == arm.shown)
    assert row[1] == "60.00 ± 8.16 (4 of 5)"  # variance (10^2 + 10^2) / 3
    table = diverged_table(diverged_runs(found), found.arms)
    assert table is not None
    assert table.rows == (
        *([(arm.group,)] if arm.group else []),
        (f"{arm.shown}, seed 1", "9", "0 of 3"),
        (f"{arm.shown}, seed 2", "9", "2 of 3"),
        (f"{arm.shown}, seed 3", "9", "3 of 3"),
    )
    assert diverged_table(diverged_runs(Results(made, found.runs[:1])), made.arms) is None


def test_claims_are_counted_by_seed_where_both_were_measured() -> None:
    def better(number: Numbers) -> float:
        return number("ours", "accuracy") - number("other", "accuracy")

    made = experiment(
        claims=(Claim("ours is first", better, "as printed"), Claim("absent", lambda n: n("absent", "loss")))
    )
    found = results((0, 0, 0.5, 1), (0, 1, 0.6, 1), (0, 2, 0.7, 1), (1, 0, 0.6, 1), (1, 1, 0.5, 1), of=made)
    (verdict,) = verdicts(found)
    assert (verdict.held, verdict.margins) == (1, pytest.approx((-10, 10)))
    assert claims_table(verdicts(results((1, 0, 0.5, 1), of=made))) is None


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"arms": (Arm("a"), Arm("a"))}, "arm {'a'} is there twice"),
        ({"arms": (Arm("a", {}, {"f1": 1.0}),)}, "a has numbers for {'f1'}"),
        ({"quick": Quick({}, ("b",))}, "quick names {'b'}"),
        ({"criterion": "f1"}, "criterion f1"),
        ({"measures": (LOSS, Measure("x", "x", last("x"), beside="y"))}, "x stands beside y"),
    ],
)
def test_an_experiment_that_contradicts_itself(changed: dict[str, object], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line.replace("{", r"\{").replace("}", r"\}")):
        computed(tmp_path, **changed)
