"""The results' file: what is written is read, and another file is one line."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedappeal.protocol.metric import ACCURACY
from fedappeal.runs.launch.in_process import Machine
from fedappeal.settings.config import ConfigError
from fedappeal.studies.bench.bench_results import NAME, BenchResults, measures
from fedappeal.studies.bench.design import Cell
from fedappeal.studies.bench.runs import repeat_rows
from fedappeal.studies.results import MOST_BYTES
from tests.studies.bench.made import made


def test_what_is_written_is_read(tmp_path: Path) -> None:
    results = made({"fedavg": [[1.0, 2.0]], "maxfl": [[3.0, 4.0]]}, behaviour="defect")
    read = BenchResults.of_file(results.write(tmp_path / "results.json"))
    assert read == results
    assert read.numbers(Cell("digits", "defect", 14, "maxfl"), "kept") == {0: 3.0, 1: 4.0}
    assert read.numbers(Cell("digits", "defect", 14, "term"), "kept") == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole | {"format": 2}, "format 2, not 3; the command that did its runs writes it again"),
        (lambda whole: whole | {"rows": [{}]}, "rows.0"),
        (lambda whole: whole | {"surprise": 1}, "surprise"),
        (lambda whole: {}, "holds no numbers of bench"),
        (lambda whole: {"experiment": NAME, "source": "", "command": ""}, "has no quick"),
        (
            lambda whole: whole | {"rows": [whole["rows"][0] | {"name": "digits, defect 14, fedavg"}]},
            "is not TASK-BEHAVIOUR-GOODWILL-STRATEGY of the design; an older version called rows so",
        ),
        (
            lambda whole: whole | {"rows": [whole["rows"][0] | {"name": "digits-x-14-fedavg"}]},
            "row 'digits-x-14-fedavg' is not TASK",
        ),
        (
            lambda whole: whole | {"rows": [whole["rows"][0] | {"name": "digits-x\n-14-fedavg"}]},
            r"row 'digits-x\\n-14-fedavg' is not TASK",
        ),
        (
            lambda whole: whole | {"rows": [whole["rows"][0] | {"name": "digits-defect-014-fedavg"}]},
            "row 'digits-defect-014-fedavg' is not TASK",
        ),
        (lambda whole: whole | {"rows": [whole["rows"][0] | {"ours": {"a\nb": ["x"]}}]}, "rows.0.ours.a b.0"),
        (lambda whole: whole | {"seeds": 0}, "seeds: Input should be greater than or equal to 1"),
        (lambda whole: whole | {"rows": whole["rows"] * 2}, "a run stands there twice"),
        (lambda whole: whole | {"rows": [whole["rows"][0] | {"ours": {"kept": [1e101]}}]}, "rows.0.ours.kept.0"),
        (lambda whole: whole | {"metrics": {}}, "task 'digits' has no metric"),
        (lambda whole: whole | {"rows": [whole["rows"][0] | {"seeds": [0, 1]}]}, "not as many numbers as seeds"),
        (
            lambda whole: whole | {"rows": [whole["rows"][0] | {"settings": {}}]},
            "row 'digits-defect-14-fedavg' has no settings",
        ),
        (
            lambda whole: whole | {"rows": [whole["rows"][0] | {"name": "mnist-appeal-3-fedavg"}]},
            "row 'mnist-appeal-3-fedavg' is not TASK",
        ),
    ],
)
def test_another_form_is_one_line(tmp_path: Path, change: object, said: str) -> None:
    path = made({"fedavg": [[1.0]]}, behaviour="defect").write(tmp_path / "results.json")
    assert callable(change)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=said) as caught:
        BenchResults.of_file(path)
    assert "\n" not in str(caught.value)


def test_a_number_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    path = made({"fedavg": [[1.0]]}, behaviour="defect").write(tmp_path / "results.json")
    whole = json.loads(path.read_text())
    whole["rows"][0]["ours"]["kept"] = [float("nan")]
    path.write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match="is not allowed"):
        BenchResults.of_file(path)


def test_a_file_that_is_missing_or_too_large_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(ConfigError, match="No such file"):
        BenchResults.of_file(path)
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ConfigError, match="more than 50,000,000 bytes"):
        BenchResults.of_file(path)


def test_measures_are_read_off_a_history() -> None:
    """Of 20 clients 10 join and 5 leave in the first round, 5 join in the second.

    The strategy ends the run there: up to round 40 it counts on as in round 2. Clients that prefer their own models
    come to 0.9 with them where the shared one gives 0.85.
    """
    first = {"round": 1, "asked": 20, "joined": 10, "left": 5, "bytes_up": 1e6, "bytes_down": 2e6}
    second = {"round": 2, "asked": 15, "joined": 5, "left": 0, "bytes_up": 9e6, "bytes_down": 9e6, "expected": 20}
    second |= {"evaluated": 20, "accuracy": 0.85, "preferred_accuracy": 0.9, "worst_decile_accuracy": 0.5}
    numbers = {measure.key: measure.number([first, second]) for measure in measures("digits", ACCURACY, 40)}
    assert numbers == pytest.approx(
        {"kept": 25.0, "stayed": 75.0, "score": 85.0, "regret": 5.0, "worst": 50.0, "megabytes": 6.0}
    )
    (regret,) = (m for m in measures("digits", replace(ACCURACY, higher_is_better=False)) if m.key == "regret")
    assert regret.number([first, second]) == pytest.approx(-5.0)


@pytest.mark.parametrize(("mandatory", "expected"), [(True, None), (False, 100.0)])
def test_a_run_that_ends_in_a_mandatory_round_does_not_tell_which_clients_would_join(
    mandatory: bool, expected: float | None
) -> None:
    only = {"round": 1, "asked": 20, "joined": 20, "left": 0, "bytes_up": 1.0, "bytes_down": 1.0}
    (measure,) = (measure for measure in measures("digits", ACCURACY, 40) if measure.key == "kept")
    assert measure.number([{**only, "mandatory": mandatory}]) == expected


def test_a_published_window_is_ten_rounds() -> None:
    """The page says "the last ten free rounds": 30 rounds of which the last ten are another run than those before."""
    lines = [
        {
            **{"round": number, "asked": 20, "joined": 5 if number > 20 else 15, "left": 0},
            **{"bytes_up": 1, "bytes_down": 1, "expected": 20, "evaluated": 20},
            **dict.fromkeys(("accuracy", "worst_decile_accuracy"), 0.9 if number > 20 else 0.1),
            "preferred_accuracy": 0.95 if number > 20 else 0.5,
        }
        for number in range(1, 31)
    ]
    of = {measure.key: measure.number(lines) for measure in measures("digits", ACCURACY, 30)}
    assert [of[key] for key in ("kept", "score", "regret", "worst")] == pytest.approx([25, 90, 5, 90])


def test_a_committed_row_is_what_its_history_gives(tmp_path: Path) -> None:
    """Its first seed is run again: `fedappeal bench --again` does so for two rows of a strategy."""
    results = BenchResults.of_file(Path(__file__).parents[3] / "docs" / "bench-results" / "results.json")
    console = Console(file=io.StringIO())
    cell = next(cell for cell in results.cells() if cell.task == "digits" and cell.goodwill)
    rows = repeat_rows(results, [cell], Machine(threads=1), console)
    assert len(rows) == 6
    assert not [row for row in rows if row[-1]]
