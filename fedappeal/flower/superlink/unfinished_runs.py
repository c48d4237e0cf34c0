"""The runs that were under way when a SuperLink ended, read from its database before the next one starts on it.

Flower itself soon calls such a run failed, since its server process gives no sign of life any more.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from fedappeal.settings.config import ConfigError

_BEGUN = """
SELECT run.run_id FROM run JOIN task ON task.task_id = run.primary_task_id
WHERE task.starting_at IS NOT NULL AND task.finished_at IS NULL ORDER BY task.pending_at
"""


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
