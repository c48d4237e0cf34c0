"""What is read of a SuperLink's database, a file of SQLite, before one starts on it.

A first SuperLink that was stopped, or whose disk was full, leaves a file without all tables: Flower makes them in
place, and can neither use nor complete it. And of the runs that were under way Flower itself soon says that they
failed, since their server processes give no sign of life any more.
"""

import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from flwr.supercore.logger import FLOWER_LOGGER

from fedappeal.settings.config import ConfigError

_BEGUN = """
SELECT run.run_id FROM run JOIN task ON task.task_id = run.primary_task_id
WHERE task.starting_at IS NOT NULL AND task.finished_at IS NULL ORDER BY task.pending_at
"""


def set_aside_half_made(database: Path) -> None:
    """Rename a database that has not all tables and not one row, and say so; any other stays.

    Args:
        database: the file, which this process has alone.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    if not database.exists() or not _is_half_made(database):
        return
    aside = database.with_name(f"{database.name}.half-made")
    database.replace(aside)
    for ending in ("-wal", "-shm", "-journal"):
        database.with_name(database.name + ending).unlink(missing_ok=True)
    FLOWER_LOGGER.warning("a first start on '%s' did not end: its file is now '%s', and begun anew", database, aside)


def _is_half_made(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        of_flower = tables - {"alembic_version", "sqlite_sequence"}
        quoted = ('"{}"'.format(name.replace('"', '""')) for name in of_flower)
        one = (f"SELECT 1 FROM {name} LIMIT 1" for name in quoted)  # nosec B608 # names are no parameters
        if not tables or any(connection.execute(query).fetchone() for query in one):
            return False
        made = connection.execute("SELECT version_num FROM alembic_version") if "alembic_version" in tables else ()
        migrations: Any = import_module("flwr.supercore.state.alembic.utils").ALEMBIC_DIR
        return {version for (version,) in made} != set(ScriptDirectory(migrations).get_heads())


def unfinished_runs(database: Path) -> list[int]:
    """Return the ids of the runs that had begun and not ended, in the order in which they were submitted.

    A run that had not begun is not among them: Flower begins it.

    Raises:
        ConfigError: the file is no database of this Flower's.
    """
    if not database.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            rows = connection.execute(_BEGUN).fetchall() if tables != (0,) else []
    except sqlite3.Error as error:
        raise ConfigError(f"database = '{database}' cannot be read for runs to continue: {error}") from None
    return [run_id % 2**64 for (run_id,) in rows]  # SQLite's integers have a sign
