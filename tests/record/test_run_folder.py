"""A run's folder: what it refuses, what a kill leaves behind, what resume forgets."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedappeal.protocol.metric import Metric
from fedappeal.record.folder import RunFolder, check_new, new_path, runtime_of
from fedappeal.record.lines import CONFIG, EVENTS, HISTORY, MEASUREMENTS, PARTICIPATION, POLICIES
from fedappeal.record.reader import Record
from fedappeal.runs.checks import check_out
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.files import read_values
from fedappeal.system.locks import only_process
from server.build import run_plugins
from server.checkpoints import settings_to_resume
from tests.node import changed, run_config

SETTINGS = RunConfig(rounds=3, seed=4)


def test_a_new_folder_records_settings_versions_and_a_key(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path / "deep" / "run").folder({})
    record = Record(folder.path).config
    assert RunConfig.parse(record["settings"]) == RunConfig.parse(run_plugins(SETTINGS).all_settings())
    assert {key: value for key, value in record["settings"].items() if "." not in key} == SETTINGS.as_config()
    assert record["run-key"] == folder.run_key
    assert {"fedappeal", "flwr", "torch", "numpy", "python"} <= set(record["versions"])
    assert RunFolder.open(folder.path).run_key == folder.run_key
    assert RunPlan.of(SETTINGS, tmp_path / "other").folder({}).run_key != folder.run_key


def test_it_holds_every_setting_of_the_plug_ins_that_the_run_uses(tmp_path: Path) -> None:
    config = run_config(
        strategy="pfedme", participation="defect=0.5,appeal=0.5", requirement="fixed", pfedme__moreau_lambda=3.0
    )
    settings = Record(RunPlan.of(config, tmp_path).folder({}).path).config["settings"]
    assert {key: value for key, value in settings.items() if "." in key} == {
        "pfedme.moreau-lambda": 3.0,
        "pfedme.moreau-steps": 5,
        "pfedme.personal-learning-rate": 0.05,
        "pfedme.server-mixing": 1.0,
        "fixed.loss": 1.0,
    }
    # What it records starts the same run again, also where another default holds by then.
    again = RunConfig.parse(settings)
    assert RunConfig.parse(run_plugins(again).all_settings()) == again
    assert changed(again, out="elsewhere").section("pfedme") == again.section("pfedme")


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    RunPlan.of(SETTINGS, tmp_path).folder({})
    before = (tmp_path / CONFIG).read_bytes()
    with pytest.raises(ConfigError, match="already holds a run"):
        RunPlan.of(SETTINGS, tmp_path).folder({})
    assert (tmp_path / CONFIG).read_bytes() == before


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"out = .* is not a folder"):
        check_new(tmp_path / "file")
    with pytest.raises(ConfigError, match="out = "):
        RunPlan.of(SETTINGS, tmp_path / "file" / "run").folder({})
    check_new(tmp_path)


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / CONFIG).write_text(content)
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        RunFolder.open(tmp_path)


def test_a_new_runs_folder_that_a_full_disk_does_not_take_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match=rf"^out = '{tmp_path}/run' cannot be written: No space left on device$"):
        RunFolder.create(tmp_path / "run", {})


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({new_path(RunConfig()) for _ in range(3)}) == 3
    for number in range(20):
        begin, paths = threading.Barrier(3), [tmp_path / str(number) / "runs" / name for name in "abc"]

        def make(path: Path, begin: threading.Barrier) -> None:
            begin.wait(10)
            check_out(path)
            RunFolder.create(path, {})

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(make, paths, [begin] * 3))
        assert sorted(paths[0].parent.iterdir()) == paths


def test_the_trial_of_a_folder_is_no_run_and_stays_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = list[str]()
    touch = Path.touch
    monkeypatch.setattr(Path, "touch", lambda path: (touched.append(path.name), touch(path))[1])
    check_out(tmp_path / "a" / ".." / ".." / f"{tmp_path.name}-2" / "b")
    assert len(touched) == 1
    assert touched != [CONFIG]
    assert not list(tmp_path.iterdir())
    assert not (tmp_path.parent / f"{tmp_path.name}-2").exists()


@pytest.mark.parametrize("resumptions", [None, 5, {}])
def test_resumptions_that_are_no_list_are_one_line(tmp_path: Path, resumptions: object) -> None:
    RunPlan.of(SETTINGS, tmp_path).folder({}).record(resumptions=resumptions)
    with pytest.raises(ConfigError, match=f"resumptions = {resumptions} in its {CONFIG}"):
        RunFolder.open(tmp_path)


def cut(path: Path) -> None:
    """Lose the last bytes, as a kill in the middle of a write does."""
    path.write_bytes(path.read_bytes()[:-5])


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    assert Record(tmp_path).history == []
    folder.append(HISTORY, {"round": 1}, {"round": 2})
    folder.append(HISTORY, {"round": 3, "loss": 0.25})
    assert Record(tmp_path).history == [{"round": 1}, {"round": 2}, {"round": 3, "loss": 0.25}]
    cut(tmp_path / HISTORY)
    assert Record(tmp_path).history == [{"round": 1}, {"round": 2}]


def test_resume_forgets_rounds_after_the_checkpoint_and_lines_cut_short(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    for server_round in (1, 2, 3):
        lines = [{"round": server_round, "client-id": c, "decision": "joined"} for c in "ab"]
        folder.append(PARTICIPATION, *lines)
        folder.append(MEASUREMENTS, {"round": server_round, "client-ids": ["a", "b"]})
        folder.append(HISTORY, {"round": server_round})
        folder.event("round", round=server_round)
    folder.event("refused", node="7", reason="late")
    folder.event("failed", reason="killed")
    folder.append(POLICIES, *({"client-id": c, "policy": "appeal"} for c in "ab"))
    for file in (HISTORY, PARTICIPATION, MEASUREMENTS, EVENTS, POLICIES):
        cut(tmp_path / file)
    folder.forget_after(2)
    folder.append(HISTORY, {"round": 3})
    folder.append(POLICIES, {"client-id": "b", "policy": "appeal"})
    folder.event("resumed", round=2)
    assert [line["round"] for line in Record(tmp_path).history] == [1, 2, 3]
    assert [line["round"] for line in Record(tmp_path).decisions] == [1, 1, 2, 2]
    assert [line["round"] for line in Record(tmp_path).measurements] == [1, 2]
    events = [(e["event"], e.get("round")) for e in Record(tmp_path).events]
    assert events == [("round", 1), ("round", 2), ("refused", None), ("resumed", 2)], "arrivals were not undone"
    assert all(json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines())
    assert [line["client-id"] for line in Record(tmp_path).policies] == ["a", "b"]
    folder.forget_after(0)
    assert Record(tmp_path).history == Record(tmp_path).decisions == []
    assert [line["client-id"] for line in Record(tmp_path).policies] == ["a", "b"]


def test_without_a_mixture_no_policies_are_written(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    folder.event("round", round=1)
    folder.forget_after(0)
    assert not (tmp_path / POLICIES).exists()


def test_a_run_that_goes_on_elsewhere_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = RunPlan.of(RunConfig(), tmp_path / "run").folder({})
    with folder.alone():
        other = RunFolder.open(folder.path)
        with pytest.raises(ConfigError, match=f"that process {os.getpid()} is running: wait for it"):
            other.alone().__enter__()
    with other.alone():
        pass


def test_a_run_has_ended_unless_it_continues(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    folder.event("round", round=1)
    assert Record(tmp_path).standing.end is None
    folder.event("finished", round=3, reason="")
    assert (Record(tmp_path).standing.end or {})["round"] == 3
    folder.event("resumed", round=3)
    assert Record(tmp_path).standing.end is None
    folder.event("finished", round=5, reason="all have left")
    assert (Record(tmp_path).standing.end or {})["reason"] == "all have left"


def test_a_continuation_changes_the_total_of_rounds_and_nothing_else_of_the_settings(tmp_path: Path) -> None:
    folder = RunPlan.of(changed(SETTINGS, seed=5), tmp_path).folder({"kind": "local", "device": "cpu"})
    before = Record(tmp_path).config
    folder.record_resumption(2, RunConfig.parse(before["settings"]).continued(8))
    after = Record(tmp_path).config
    (resumption,) = after.pop("resumptions")
    assert (resumption["from-round"], resumption["to-round"]) == (2, 8)
    assert set(resumption["versions"]) == set(before["versions"])
    assert after["settings"] == before["settings"] | {"rounds": 8, "schedule-rounds": 3}
    assert {key: after[key] for key in after if key != "settings"} == {
        key: before[key] for key in before if key != "settings"
    }
    folder.record_resumption(8, RunConfig.parse(after["settings"]).continued(9))
    assert Record(tmp_path).config["settings"]["schedule-rounds"] == 3, "as it began, not as it last continued"


def test_what_a_run_is_about_is_recorded_once_and_stays(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    folder.identify({"layout": "a1"})
    folder.identify({"layout": "a1", "task-fingerprint": "b2"})
    assert (Record(tmp_path).config["layout"], Record(tmp_path).config["task-fingerprint"]) == ("a1", "b2")
    with pytest.raises(ConfigError, match=f"layout c3 is not that of the run in '{tmp_path}', a1: a run continues"):
        folder.identify({"layout": "c3"})


@pytest.mark.parametrize(
    "line", ["[]", "7", "{bad", "[" * 100_000, '{"round": "x"}', '{"round": -1}', '{"round": NaN}']
)
def test_a_damaged_line_is_named_and_settings_can_be_read_beside_it(line: str, tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    folder.append(HISTORY, {"round": 1})
    with open(tmp_path / HISTORY, "a") as file:
        file.write(line + "\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"history.jsonl' cannot be read: line 2: ") as error:
        _ = Record(tmp_path).history
    assert len(str(error.value).splitlines()) == 1
    assert settings_to_resume(tmp_path).rounds == SETTINGS.rounds
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_lines_and_ends_hold_no_control_characters(tmp_path: Path) -> None:
    folder = RunPlan.of(SETTINGS, tmp_path).folder({})
    folder.event("finished", round=2, reason="\x1b[31mred\x07")
    assert Record(tmp_path).standing.end == Record(tmp_path).events[0]
    assert Record(tmp_path).events[0]["reason"] == "?[31mred?"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("settings", [], "records no settings of a run"),
        ("settings", {"task": "digits"}, "records no settings of a run"),
        ("run-key", "../../x", "has no run-key that is allowed"),
        ("run-key", ["x"], "has no run-key that is allowed"),
        ("runtime", "simulation", "the runtime in its config.json is no object of scalars"),
        ("runtime", {"kind": []}, "the runtime in its config.json is no object of scalars"),
        ("metric", {"name": "f1", "higher-is-better": True, "bounds": ["x", 10**400]}, "bounds are two numbers"),
    ],
)
def test_a_record_of_another_party_is_refused_in_one_line(key: str, value: object, line: str, tmp_path: Path) -> None:
    RunPlan.of(SETTINGS, tmp_path).folder({"kind": "simulation"}).record(**{key: value})

    def read() -> None:
        settings_to_resume(tmp_path)
        runtime_of(tmp_path)
        Metric.of_record(Record(tmp_path).config.get("metric"))

    with pytest.raises(ConfigError, match=line) as error:
        read()
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "7", ""])
def test_a_config_that_is_no_object_is_no_run(text: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(ConfigError, match=r"it has no readable config\.json"):
        _ = Record(tmp_path).config


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in (CONFIG, HISTORY, "model.safetensors"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=r"it has no readable config\.json"):
        _ = Record(tmp_path).config
    with pytest.raises(ConfigError, match="it is no file"):
        _ = Record(tmp_path).history
    with pytest.raises(ConfigError, match="it is no file"):
        read_values(tmp_path / "model.safetensors")


def test_a_new_run_takes_a_folder_in_which_one_was_killed_before_it_began(tmp_path: Path) -> None:
    (tmp_path / f".{CONFIG}.999999999.tmp").write_text("{")
    RunPlan.of(RunConfig(), tmp_path).folder({})
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", CONFIG]


def test_a_folder_in_which_another_process_begins_a_run_is_refused(tmp_path: Path) -> None:
    with only_process(tmp_path, ".lock"), pytest.raises(ConfigError, match=f"process {os.getpid()} is running"):
        RunPlan.of(RunConfig(), tmp_path).folder({})
    assert not (tmp_path / CONFIG).exists()
