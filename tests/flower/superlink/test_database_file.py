"""Which databases are set aside, and how Flower's database says that a run has begun and has not ended."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import SubStatus
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedappeal.flower.superlink.database_file import set_aside_half_made, unfinished_runs
from fedappeal.settings.config import ConfigError

LESS = "UPDATE alembic_version SET version_num = '8e65d8ae60b0'; DROP TABLE task;"


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ("", True),
        (LESS, False),
        ("DROP TABLE alembic_version", False),
        ("DELETE FROM alembic_version", False),
        (f"{LESS} INSERT INTO fab VALUES ('hash', 'content', '')", True),
        (f"{LESS} INSERT INTO run (run_id, primary_task_id) VALUES (1, 1)", True),
        (f"{LESS} INSERT INTO node (node_id) VALUES (1)", True),
    ],
)
def test_only_a_database_without_all_tables_and_without_a_row_is_set_aside(
    change: str, stays: bool, empty_database: Path, tmp_path: Path
) -> None:
    database = Path(shutil.copy(empty_database, tmp_path / "state.db"))
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(change)
        connection.commit()
    set_aside_half_made(database)
    assert (database.exists(), (tmp_path / "state.db.half-made").exists()) == (stays, not stays)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_no_database_yet_stays_and_what_is_none_is_an_error(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    set_aside_half_made(database)
    database.touch()
    set_aside_half_made(database)
    database.write_text("hello" * 999)
    with pytest.raises(sqlite3.DatabaseError):
        set_aside_half_made(database)
    assert list(tmp_path.iterdir()) == [database]


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
