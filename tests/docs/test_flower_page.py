"""docs/flower.md: its table has exactly the modules of which fedappeal/flower uses unpublished names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from tests.docs.pages import DOCS
from tests.flower.test_door import DOOR, PUBLISHED

LINES = [line for line in (DOCS / "flower.md").read_text().splitlines() if line.startswith("| `")]
MODULES = {module for line in LINES for module in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
SOURCES = [path.read_text() for path in sorted(DOOR.rglob("*.py"))]
_MODULE = re.compile(r"flwr(\.\w+)+|grpc\._\w+")


@cache
def modules_used() -> frozenset[str]:
    return frozenset(uses())


def uses() -> Iterator[str]:
    """Each unpublished module of which the folder uses or replaces a name."""
    for node in (node for source in SOURCES for node in ast.walk(ast.parse(source))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("flwr.") and module not in PUBLISHED:
                for name in (alias.name for alias in node.names):
                    yield f"{module}.{name}" if is_module(f"{module}.{name}") else module
            case ast.Constant(value=str(text)) if _MODULE.fullmatch(text):
                yield text


def is_module(path: str) -> bool:
    try:
        import_module(path)
    except ModuleNotFoundError:
        return False
    return True


def covers(row: str, module: str) -> bool:
    """Whether a row's module is that one, or a package with it."""
    return module == row or (row.endswith(".*") and f"{module}.".startswith(row.removesuffix("*")))


def test_every_module_that_is_used_has_a_row() -> None:
    assert len(modules_used()) > 40
    assert {module for module in modules_used() if not any(covers(row, module) for row in MODULES)} == set()


def test_no_row_has_a_module_that_is_not_used() -> None:
    assert {row for row in MODULES if not any(covers(row, module) for module in modules_used())} == set()


def test_each_class_whose_private_state_is_made_is_named() -> None:
    nodes = [node for source in SOURCES for node in ast.walk(ast.parse(source))]
    makers = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(part) == "object.__new__(kind)" for part in ast.walk(node))
    }
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in makers]
    made = {call.args[0].id for call in calls if isinstance(call.args[0], ast.Name)}
    assert made
    assert {name for name in made if not any(f"`{name}`" in line for line in LINES)} == set()
