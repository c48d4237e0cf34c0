"""Runs that are found under folders, and what is read of them."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedappeal.record.folder import RunFolder
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.views.comparison.recorded_runs import find_runs, read_runs
from tests.views.comparison.recorded import a_run


def test_a_sweeps_folder_and_nested_ones(tmp_path: Path) -> None:
    for name in ("seed-10", "seed-2", "deep/er/seed-1"):
        a_run(tmp_path / name, [{}])
    a_run(tmp_path / "seed-2" / "clients" / "inner", [{}])  # what a run leaves below its folder is no run
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    names = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert names == ["deep/er/seed-1", "seed-2", "seed-10"]
    assert find_runs(tmp_path / "seed-2") == [tmp_path / "seed-2"]
    runs, empty = read_runs(tmp_path)
    assert ([run.name for run in runs], empty) == (names, [])


def test_paths_texts_and_objects_with_a_path(tmp_path: Path) -> None:
    one, two = (a_run(tmp_path / name, [{}]) for name in ("one", "two"))
    for runs in ([one, two], [str(one), SimpleNamespace(path=two)], iter([one, two]), tmp_path, str(tmp_path)):
        assert [run.name for run in read_runs(runs)[0]] == ["one", "two"]  # type: ignore[arg-type]
    (alone,), _ = read_runs(SimpleNamespace(path=one))
    assert alone.name == "one"


def test_what_is_read(tmp_path: Path) -> None:
    a_run(tmp_path / "over", [{}, {"evaluated": 2, "expected": 3}])
    a_run(tmp_path / "on", [{}], rounds=5)
    a_run(tmp_path / "early", [{}], rounds=5)
    RunFolder(tmp_path / "early", "").event("finished", round=1, reason="all left")
    a_run(tmp_path / "resumed", [{}, {}], rounds=5)
    RunFolder(tmp_path / "resumed", "").event("finished", round=1, reason="all left")
    a_run(tmp_path / "begun", [], rounds=5)
    runs, empty = read_runs(tmp_path)
    assert empty == ["begun"]
    assert {run.name: (run.finished, run.early_end, run.last_round, run.measured) for run in runs} == {
        "over": (True, "", 2, "2 of 3"),
        "on": (False, "", 1, ""),
        "early": (True, "all left", 1, ""),
        "resumed": (False, "", 2, ""),
    }
    assert [line["round"] for line in runs[-2].until(1).lines] == [1]


def test_what_is_not_allowed_is_one_line(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs" / "a", [{}])
    begun = a_run(tmp_path / "begun" / "b", [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"settings": {}}')
    a_run(tmp_path / "broken", [{}])
    (tmp_path / "broken" / "config.json").write_text("{")
    for paths, line in (
        ([], r"runs = \[\] is not allowed: at least one folder"),
        (
            [tmp_path / "empty"],
            "'.*empty' is not the folder of a run and holds none: no run's config.json is in",
        ),
        ([tmp_path / "nowhere"], "'.*nowhere' is not the folder of a run: there is no such folder"),
        ([tmp_path / "other"], "'.*other' is not the folder of a run"),
        ([tmp_path / "broken"], "'.*broken' is not the folder of a run: it has no readable config.json"),
        ([run, run.parent / ".." / "runs" / "a"], "a run is named twice: '.*a'"),
        ([run, run.parent], "a run is named twice"),
        ([begun], "'.*b' has no finished round to compare"),
        ([begun.parent], "'.*begun' holds no run with a finished round"),
    ):
        with pytest.raises(ConfigError, match=line) as error:
            read_runs(paths)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "odd", [{"asked": "x"}, {"joined": None}, {"accuracy": "x"}, {"loss": {}}, {"loss": 10**400}]
)
def test_a_history_whose_figures_are_no_numbers_is_one_line(odd: dict[str, Any], tmp_path: Path) -> None:
    run = a_run(tmp_path, [{}, odd])
    with pytest.raises(ConfigError, match=rf"history.jsonl' cannot be read: line 2: {next(iter(odd))} is no such"):
        read_runs(run)


def test_settings_that_another_party_wrote(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", [{}])
    record = Record(run).config["settings"]
    RunFolder.open(run).record(settings={**record, "strategy": "\x1b[31mmaxfl"})
    assert read_runs(run)[0][0].settings["strategy"] == "?[31mmaxfl"
    for key, value in {"seed": "x", "rounds": True, "strategy": {}, "task": ["digits"]}.items():
        RunFolder.open(run).record(settings={**record, key: value})
        with pytest.raises(ConfigError, match=re.escape(f"{key} = {value!r} in its config.json")):
            read_runs(run)
