"""A database of which Flower had not made all tables when its first SuperLink was stopped, or its disk was full.

Flower makes them in place, and can neither use nor complete such a file.
"""

import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from flwr.supercore.logger import FLOWER_LOGGER


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
