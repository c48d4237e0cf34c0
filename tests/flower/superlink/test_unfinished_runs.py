"""What `unfinished_runs` relies on: how Flower's database says that a run has begun and has not ended."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import SubStatus
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedappeal.flower.superlink.unfinished_runs import unfinished_runs
from fedappeal.settings.config import ConfigError


def test_runs_that_had_begun_and_not_ended_are_unfinished(empty_database: Path, tmp_path: Path) -> None:
    database = Path(shutil.copy(empty_database, tmp_path / "a % name.db"))
    state: Any = LinkStateFactory(str(database), NoOpFederationManager(), ObjectStoreFactory()).state()
    made = ("a/b", "1.0", "hash", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    starting, running, *ended, _pending = runs = [state.create_run(*made) for _ in range(6)]
    for run_id in runs[:-1]:
        [task] = state.get_tasks(run_ids=[run_id])
        assert state.claim_task(task.task_id)
        if run_id != starting:
            assert state.activate_task(task.task_id)
    for run_id, how in zip(ended, (SubStatus.COMPLETED, SubStatus.STOPPED, SubStatus.FAILED), strict=True):
        [task] = state.get_tasks(run_ids=[run_id])
        assert state.finish_task(task.task_id, how, "")
    assert unfinished_runs(database) == [starting, running]


def test_a_new_database_has_none_and_another_file_is_refused(empty_database: Path, tmp_path: Path) -> None:
    assert unfinished_runs(tmp_path / "new.db") == unfinished_runs(empty_database) == []
    (tmp_path / "empty.db").touch()
    assert unfinished_runs(tmp_path / "empty.db") == []
    other = tmp_path / "other.db"
    other.write_text("hello" * 999)
    with pytest.raises(ConfigError, match=r"other\.db' cannot be read for runs to continue: file is not a database"):
        unfinished_runs(other)
