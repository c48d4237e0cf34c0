"""Which databases are set aside: those that Flower had not made whole, with nothing in them."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedappeal.flower.superlink.half_made import set_aside_half_made

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
