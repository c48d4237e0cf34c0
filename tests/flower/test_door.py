"""Nothing but fedappeal/flower uses what Flower does not publish, and that folder imports nothing that imports it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOOR = ROOT / "fedappeal" / "flower"
PUBLISHED = (
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports from, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("folder", ["client", "server", "strategies", "fedappeal"])
def test_the_rest_uses_what_flower_publishes(folder: str) -> None:
    outside = [path for path in files(folder) if DOOR not in path.parents]
    assert outside
    used = {
        (str(path.relative_to(ROOT)), name)
        for path in outside
        for name in imports(path)
        if name.partition(".")[0] == "flwr"
    }
    assert {(path, name) for path, name in used if name not in PUBLISHED} == set()
    by_hand = [path for path in outside if '"_message_id"' in path.read_text() or "TaskIdentity" in path.read_text()]
    assert by_hand == []


def of_the_project(path: Path) -> set[str]:
    folders = ("client", "server", "strategies", "fedappeal")
    return {name for name in imports(path) if name.partition(".")[0] in folders}


def test_the_door_imports_only_what_imports_nothing_of_it() -> None:
    ours = set().union(*map(of_the_project, files("fedappeal/flower")))
    below = ("fedappeal.protocol", "fedappeal.settings")
    beyond = {name for name in ours if not name.startswith(("fedappeal.flower", *below))}
    assert beyond
    theirs = set().union(*(of_the_project(ROOT / f"{name.replace('.', '/')}.py") for name in beyond))
    assert {name for name in theirs if not name.startswith(below)} == set()


def test_each_module_has_its_contract_test() -> None:
    modules = {path.stem for path in files("fedappeal/flower")} - {"__init__", "fleet"}  # fleet: only types
    assert {f"test_{name}" for name in modules} <= {path.stem for path in files("tests/flower")}
