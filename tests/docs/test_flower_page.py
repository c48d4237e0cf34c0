"""docs/flower.md: its table has exactly the unpublished names of Flower and gRPC that fedappeal/flower uses."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from tests.docs.pages import DOCS
from tests.flower.test_door import DOOR, PUBLISHED

LINES = [line for line in (DOCS / "flower.md").read_text().splitlines() if line.startswith("| `")]
ROWS = [tuple(re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")[:2]) for line in LINES]
MODULES = {module for modules, _ in ROWS for module in modules}
NAMES = {name for _, names in ROWS for name in names}
SOURCES = [path.read_text() for path in sorted(DOOR.rglob("*.py"))]
_MODULE = re.compile(r"flwr(\.\w+)+|grpc\._\w+")


@cache
def used() -> frozenset[tuple[str, str]]:
    return frozenset(uses())


def uses() -> Iterator[tuple[str, str]]:
    """Each unpublished module that the folder uses, and the name that it takes from there or replaces, or ""."""
    for node in (node for source in SOURCES for node in ast.walk(ast.parse(source))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("flwr.") and module not in PUBLISHED:
                for name in (alias.name for alias in node.names):
                    yield (f"{module}.{name}", "") if is_module(f"{module}.{name}") else (module, name)
            case ast.Constant(value=str(text)) if _MODULE.fullmatch(text):
                yield text, ""
            case ast.Call(func=ast.Name(id="replace_name"), args=[_, ast.Constant(value=str(name)), _]):
                yield "", name


def is_module(path: str) -> bool:
    try:
        import_module(path)
    except ModuleNotFoundError:
        return False
    return True


def modules_used() -> set[str]:
    return {module for module, _ in used() if module}


def covers(row: str, module: str) -> bool:
    """Whether a row's module is that one, or a package with it."""
    return module == row or (row.endswith(".*") and f"{module}.".startswith(row.removesuffix("*")))


def test_every_module_that_is_used_has_a_row() -> None:
    assert len(modules_used()) > 40
    assert {module for module in modules_used() if not any(covers(row, module) for row in MODULES)} == set()


def test_every_name_that_is_imported_or_replaced_is_in_a_row() -> None:
    names = {name for module, name in used() if name and not module.startswith("flwr.proto.")}
    assert len(names) > 70
    assert names - NAMES == set()


def test_no_row_has_a_module_or_a_name_that_is_not_used() -> None:
    text = "\n".join(SOURCES)
    assert {row for row in MODULES if not any(covers(row, module) for module in modules_used())} == set()
    assert {name for name in NAMES if not re.search(rf"\b{name}\b", text)} == set()
