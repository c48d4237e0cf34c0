"""What each part imports: arrows go one way, and what a command does not need it does not load."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
EXISTING = [name for name in STRATEGIES if (ROOT / "strategies" / f"{name}.py").exists()]


def python(code: str, *, folder: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder or ROOT, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = """
import sys
print(sorted({name.partition(".")[0] for name in sys.modules} & set(WANTED)))
"""


def loaded(code: str, *wanted: str, folder: Path | None = None) -> str:
    """Return the last line that the code prints, then which of the wanted packages it loaded."""
    return python(code + LOADED.replace("WANTED", repr(wanted)), folder=folder).splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["local", "--help"], ["client", "--help"]])
def test_the_command_says_what_it_can_do_at_once(arguments: list[str]) -> None:
    code = f"""
import sys
from fedappeal.cli.main import main
sys.argv = ["fedappeal", *{arguments!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""
    assert loaded(code, "torch", "flwr", "grpc", "sklearn", "flwr_datasets", "ray") == "[]"


def test_clients_load_nothing_of_the_server() -> None:
    code = "import client.process, client.nursery, client.app, client.owner"
    assert loaded(code, "server", "ray", "flwr_datasets", "sklearn") == "[]"


def test_a_client_process_and_the_nursery_leave_torch_until_it_is_needed() -> None:
    assert loaded("import client.nursery, client.settings", "torch", "flwr", "server") == "[]"
    assert loaded("import client.process", "torch", "server") == "[]"


def test_the_server_app_builds_every_strategy_without_torch() -> None:
    code = f"""
import server.app
from fedappeal.protocol.config import RunConfig
from server.strategies import build_strategy
for name in {EXISTING!r}:
    built = build_strategy(RunConfig(strategy=name))
    assert type(built).__name__.lower() == name, built
"""
    assert {"maxfl", "fedavg"} <= set(EXISTING)
    assert loaded(code, "torch", "client", "ray", "flwr_datasets") == "[]"


RUN = """
import numpy as np
from pathlib import Path
import server.app
from fedappeal.files import write_safetensors
from fedappeal.protocol import keys
from fedappeal.protocol.config import RunConfig
from server.run import run
from server.run_folder import CHECKPOINT, HISTORY, MODEL, read_lines
from tests.grid import MemoryGrid, Volunteer, time_of

arrays = {"layer.weight": np.zeros((2, 3), np.float32), "layer.bias": np.zeros(2, np.float32)}
write_safetensors(Path("initial.safetensors"), arrays, {})
for resume, rounds in ((False, 2), (True, 3)):
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", metrics={keys.APPEAL_WEIGHT: 0.1}) for k in range(2)})
    config = RunConfig(clients=2, rounds=rounds, out="run", initial_model="initial.safetensors", resume=resume)
    with time_of(grid):
        run(grid, config)
assert [line["joined"] for line in read_lines(Path("run", HISTORY))] == [2, 2, 2]
assert Path("run", MODEL).exists() and Path("run", CHECKPOINT).exists()
"""


def test_a_whole_run_of_the_server_with_a_given_model_loads_no_torch(tmp_path: Path) -> None:
    assert loaded(RUN, "torch", "client", "sklearn", "flwr_datasets", folder=tmp_path) == "[]"


def imports(folder: str) -> Iterator[tuple[Path, str]]:
    """Every module that a folder's files import, at the top or inside a function."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                yield from ((path, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)


NOT_BELOW = ["server", "fedappeal.federation", "fedappeal.simulation", "fedappeal.experiments", "fedappeal.cli"]


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        ("client", NOT_BELOW),
        ("strategies", ["client", "fedappeal.tasks", "fedappeal.files", "torch", *NOT_BELOW]),
        ("server", ["client", *NOT_BELOW[1:]]),
        ("fedappeal/protocol", ["client", "strategies", "fedappeal.tasks", "torch", *NOT_BELOW]),
        ("fedappeal/tasks", ["client", "strategies", "flwr", *NOT_BELOW]),
    ],
)
def test_arrows_go_one_way(folder: str, never: list[str]) -> None:
    found = list(imports(folder))
    assert found
    wrong = [(path.name, name) for path, name in found if any(f"{name}.".startswith(f"{n}.") for n in never)]
    assert not wrong


def test_strategies_need_numpy_flower_and_the_protocol_only() -> None:
    allowed = {"numpy", "flwr", "strategies", *sys.stdlib_module_names}
    others = {(path.name, name) for path, name in imports("strategies") if name.partition(".")[0] not in allowed}
    assert {name for _, name in others if not name.startswith("fedappeal.protocol.")} == set(), others
