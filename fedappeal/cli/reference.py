"""The tables of docs/reference.md: every name, every setting with its default, and an owner's limits.

    python -m fedappeal.cli.reference

in a checkout writes them anew, each between its marks ``<!-- NAME -->`` and ``<!-- end -->``, and the tables of
pyproject.toml; tests compare them.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from client.limits.limits import Limits
from client.settings import owner_fields
from fedappeal.cli.listing import KINDS, default_of, plugins_with_settings, summary, with_tables
from fedappeal.core.plugins import Registry
from fedappeal.hf import TextClassification
from fedappeal.record.columns import column_rows
from fedappeal.settings.config import RunConfig
from fedappeal.settings.model import choices, fact
from fedappeal.views.tracking.tracker import TRACKERS
from strategies.rounds.shared import SharedSettings

_TABLE = re.compile(r"(<!-- ([a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def tables() -> dict[str, Iterator[str]]:
    """Return the rows of each table in Markdown, by the table's name."""
    trackers = {name: TRACKERS.load(name) for name in TRACKERS.built_in}
    plugins = {
        f"{name}.{key}": field
        for name, plugin in (plugins_with_settings() | {"hf-text": TextClassification} | trackers).items()
        for key, field in plugin.Settings.described().items()
    }
    owners = owner_fields()
    return {
        **{title: _names(option, registry) for title, option, registry in KINDS},
        "run": _settings(RunConfig.described()),
        "strategy": _settings({key.replace("-", "_"): field for key, field in SharedSettings.described().items()}),
        "plug-ins": _settings(plugins),
        "owner": _settings({f"--{key}": field for key, field in owners.items()}),
        "limits": _settings(Limits.described()),
        "columns": _columns(),
    }


def renew_tables(page: str) -> str:
    """Return a page with its tables generated anew."""
    current = tables()
    return _TABLE.sub(lambda table: "\n".join([table[1], *current[table[2]], "", table[3]]), page)


def _names(option: str, registry: Registry[Any]) -> Iterator[str]:
    yield from (_row(f"`{option}`", ""), _row("---", "---"))
    for name in registry.built_in:
        yield _row(f"`{name}`", summary(registry, name))


def _columns() -> Iterator[str]:
    yield from (_row("column", "unit", "better", "averaged", ""), _row(*["---"] * 5))
    for key, *facts in column_rows():
        yield _row(f"`{key}`", *facts)


def _settings(fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    yield from (_row("setting", "default", "allowed", ""), _row(*["---"] * 4))
    for key, field in fields.items():
        if not fact(field, "internal"):
            yield _row(f"`{key}`", default_of(field), _bounds_text(field), field.description or "")


def _bounds_text(field: FieldInfo) -> str:
    """Return a field's unit, choices or bounds."""
    bounds = (
        f"{word} {getattr(item, name):g}"
        for item in field.metadata
        for name, word in _BOUNDS.items()
        if hasattr(item, name)
    )
    return ", ".join(filter(None, [fact(field, "unit"), choices(field), *bounds]))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    """Write the tables of the current checkout anew."""
    for path, current in ((Path("docs/reference.md"), renew_tables), (Path("pyproject.toml"), with_tables)):
        path.write_text(current(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
