"""Which trackers there are, and what is refused before a run begins."""

import sys
from pathlib import Path
from typing import Any

import pytest

import fedappeal
from fedappeal.cli.command_observers import CommandObservers, observers_of
from fedappeal.cli.option_groups import ResumeOptions, WatchOptions
from fedappeal.cli.start import observers_to_resume, resume_run, start_local, submit_run
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.record.reader import Record
from fedappeal.runs.launch.superlink import LocalProcesses, Submission
from fedappeal.settings.config import ConfigError
from fedappeal.views.tracking.tracker import TRACKERS, chosen_trackers
from tests.views.tracking.recorder import Kept
from tests.warm import warm_superlinks

OWN = '''
from fedappeal.views.tracking.tracker import Tracker


class Diary(Tracker):
    """A tracker of the user's: a text file."""

    def begin(self, run):
        self.file = run.folder / "diary.txt"
        return "diary"

    def round(self, number, metrics):
        with self.file.open("a") as out:
            out.write(f"{number} {metrics['loss']:.6f}\\n")

    def end(self, how):
        with self.file.open("a") as out:
            out.write(how + "\\n")
'''


@pytest.fixture
def own_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_tracking.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return "my_tracking:Diary"


def followed(tracker: str) -> CommandObservers:
    return observers_of(WatchOptions(track=[tracker]), {})[0]


def test_settings_of_trackers_are_taken_out_of_the_runs() -> None:
    makers, rest = chosen_trackers([Kept], {"kept.size": 3, "maxfl.server-lr": 0.5, "rounds": 3})
    assert rest == {"maxfl.server-lr": 0.5, "rounds": 3}
    assert [make().settings.size for make in makers.values()] == [3]
    one = Kept()
    assert chosen_trackers([one], {})[0]["kept"]() is one


@pytest.mark.parametrize(
    ("named", "settings", "problem"),
    [
        (["tensorbord"], {}, r"track = 'tensorbord' is not allowed: tensorboard, mlflow, wandb, or .*did you mean"),
        (["fedappeal.tasks.task:Task"], {}, "it is no subclass of fedappeal.views.tracking.tracker.Tracker"),
        ([3], {}, "track = 3 is not allowed: a name, or a fedappeal.views.tracking.tracker.Tracker"),
        ([Kept, Kept()], {}, "track = 'kept' is given twice"),
        ([Kept], {"kept.size": 0}, "kept.size = 0 is not allowed"),
        ([Kept], {"kept.sise": 1}, r"unknown setting 'kept.sise'; did you mean 'kept.size'"),
        ([Kept()], {"kept.size": 1}, "set = 'kept.size' is not allowed: the tracker is an object"),
        ([type("Bad", (Kept,), {"name": "a/b"})], {}, "tracker Bad is called 'a/b'"),
    ],
)
def test_what_is_not_allowed_is_one_line(named: list[Any], settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        chosen_trackers(named, settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", list(TRACKERS.built_in))
def test_a_missing_extra_is_one_line_before_anything_is_started(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = TRACKERS.load(name)
    monkeypatch.setattr(kind, "needs", ("not_there.at_all",))
    told = rf"track = '{name}' is not allowed: it needs 'not_there.at_all', .*: pip install 'fedappeal\[{name}\]'"
    with pytest.raises(ConfigError, match=told):
        fedappeal.simulate("maxfl", out=tmp_path / "run", track=name)
    with pytest.raises(ConfigError, match=told):
        start_local({"out": str(tmp_path / "run")}, LocalProcesses(device="cpu"), observers=followed(name))
    assert not (tmp_path / "run").exists()


def test_a_submitted_run_is_tracked_where_its_folder_is_seen_and_waited_for(tmp_path: Path) -> None:
    own, superlink = "tests.views.tracking.recorder:Kept", RemoteSuperLink("127.0.0.1:1")
    with pytest.raises(ConfigError, match="track is not allowed with --detach"):
        submit_run({"out": str(tmp_path / "run")}, Submission(superlink, detach=True), followed(own))
    with pytest.raises(ConfigError, match=r"track is not allowed with out = 'run': .* absolute path"):
        submit_run({"out": "run"}, Submission(superlink), followed(own))


def test_a_continuation_takes_settings_of_its_trackers_alone() -> None:
    own = "tests.views.tracking.recorder:Kept"
    observers = observers_to_resume(WatchOptions(track=[own]), ["kept.size=4"])
    assert [make().settings.size for make in observers.trackers.values()] == [4]
    with pytest.raises(ConfigError, match=r"set = 'maxfl\.server-lr' is not allowed: a run continues with its"):
        observers_to_resume(WatchOptions(track=[own]), ["maxfl.server-lr=1"])


def diary(folder: Path) -> list[str]:
    return (folder / "diary.txt").read_text().splitlines()


def test_a_tracker_of_ones_own_by_name_in_python_and_on_the_command_line(tmp_path: Path, own_tracker: str) -> None:
    quick: dict[str, Any] = {"model": "logistic", "clients": 3, "rounds": 2, "local_steps": 2, "requirement": "fixed"}
    run = fedappeal.simulate("maxfl", out="run", track=own_tracker, quiet=True, **quick)
    assert [each.split()[0] for each in diary(run.path)] == ["1", "2", "finished"]
    resume_run(run.path, ResumeOptions(rounds=3), followed(own_tracker))
    assert [each.split()[0] for each in diary(run.path)] == ["1", "2", "finished", "3", "finished"]


@pytest.mark.e2e
def test_a_local_federation_is_tracked_alike(tmp_path: Path, own_tracker: str) -> None:
    settings = {"model": "logistic", "clients": 2, "rounds": 2, "local-steps": 2, "requirement": "fixed"}
    with warm_superlinks():
        path = start_local(settings | {"out": "run"}, LocalProcesses(device="cpu"), observers=followed(own_tracker))
    losses = [f"{line['round']} {line['loss']:.6f}" for line in Record(path).history]
    assert diary(path) == [*losses, "finished"]
