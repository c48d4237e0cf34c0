"""What each part imports: arrows go one way, and what a command does not need it does not load."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code: str, *, folder: Path | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder or ROOT, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = """
import sys
print([wanted for wanted in WANTED if any(f"{name}.".startswith(f"{wanted}.") for name in sys.modules)])
"""


def loaded(code: str, *wanted: str, folder: Path | None = None) -> str:
    """Return the last line that the code prints, then which of the wanted packages and modules it loaded."""
    return python(code + LOADED.replace("WANTED", repr(wanted)), folder=folder).splitlines()[-1]


COMMANDS = """
import os, sys, fedappeal.cli.commands
from fedappeal.cli.main import main

helps = [f"{command}--help" for command in ("", "local ", "client ", "predict ", "watch ")]
for words in [*helps, "--version", "list", "list maxfl"]:
    numpy = ["numpy"] if "--help" in words else []
    if not (child := os.fork()):
        sys.argv = ["fedappeal", *words.split()]
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, ended.code
        WANTED = ["torch", "flwr", "grpc", "sklearn", "flwr_datasets", "ray", *numpy]
        LOADED
        os._exit(0)
    assert not os.waitpid(child, 0)[1], words
"""


def test_the_command_says_what_it_can_do_at_once() -> None:
    """Each from a fork of a process that has imported the commands, as each of them does."""
    shown = "print([name for name in sys.modules if name.partition('.')[0] in WANTED], flush=True)"
    lines = python(COMMANDS.replace("LOADED", shown)).splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[]"] * 8


def test_a_trained_models_card_is_read_without_torch(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from fedappeal.system.files import CARD, write_safetensors
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import load_task
from fedappeal.trained import ModelCard, read_card
task = load_task(RunConfig().task_settings())
card = ModelCard.of(task, RunConfig(), round=1, run_key="k", figures={}, measured_on="")
write_safetensors(Path("model.safetensors"), {}, {CARD: card.to_json()})
assert read_card(Path("model.safetensors")) == card
"""
    assert loaded(code, "torch", "flwr", "client", "server", folder=tmp_path) == "[]"


CLIENTS_OWN = tuple(
    f"client.{name}"
    for name in ("app", "learner", "participant", "roster", "turn", "state", "data", "fleet", "process", "settings")
)
"""What no server loads; rules, policies and requirements say what a run's settings may be."""


SPARED = ("fastapi", "sqlalchemy", "alembic")


def test_clients_load_nothing_of_the_server_and_torch_when_it_is_needed() -> None:
    """One process imports step by step what clients' processes do, and last what the ServerApp does too."""
    steps = (
        ("client.process.fork_server, client.settings", ("torch", "flwr", "server")),
        ("client.process.serve", ("torch", "server")),
        ("client.answers, client.roster", ("server", "torch")),
        ("client.app, client.process.owner", ("server", "ray", "flwr_datasets", "sklearn")),
        ("server.app", SPARED),
    )
    shown = [f"import {modules}{LOADED.replace('WANTED', repr(wanted))}" for modules, wanted in steps]
    without = "import fedappeal.flower.processes as processes\nprocesses.import_without_server()"
    lines = python("\n".join([*shown[:1], without, *shown[1:]])).splitlines()
    assert [line for line in lines if line.startswith("[")] == ["[]"] * len(steps)


def test_what_was_spared_can_be_loaded_afterwards() -> None:
    code = """
from fedappeal.flower.processes import import_without_server
import_without_server()
from fastapi import FastAPI
import flwr.supercore.error.http, flwr.superlink.grid.inmemory_grid as database
assert FastAPI and flwr.supercore.error.http.http_exception_handler and database.InMemoryGrid
"""
    assert loaded(code, *SPARED) == str(list(SPARED))


def test_torch_without_its_compiler_trains_and_loads_the_rest_afterwards() -> None:
    code = """
import sys
from fedappeal.system.tuning import import_torch_without_compiler
import_torch_without_compiler()
import torch
model = torch.nn.Linear(3, 1)
model(torch.ones(2, 3)).sum().backward()
assert model.weight.grad.tolist() == [[2.0, 2.0, 2.0]]
assert "torch._decomp" not in sys.modules
import torch._meta_registrations
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    assert torch.nn.functional.cross_entropy(torch.empty(4, 3), torch.zeros(4, dtype=torch.long)).shape == ()
"""
    assert loaded(code, "torch._decomp") == "['torch._decomp']"


def test_the_settings_of_every_plugin_and_of_tasks_on_texts_load_nothing_heavy() -> None:
    code = """
from fedappeal.tasks import TASKS
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
for registry in (STRATEGIES, LOCAL_RULES, POLICIES, REQUIREMENTS, TASKS):
    for name in registry.built_in:
        registry.load(name).Settings.parse({})
assert len(STRATEGIES.built_in) > 11
for name in ("TextClassification", "CausalLM"):
    TASKS.load(f"fedappeal.hf:{name}").Settings.parse({})
"""
    heavy = ("torch", "flwr", "grpc", "sklearn", "flwr_datasets", "transformers", "peft", "datasets", "pyarrow")
    assert loaded(code, *heavy) == "[]"


RUN = """
import numpy as np
from pathlib import Path
import server.app
from fedappeal.system.files import write_safetensors
from fedappeal.settings.config import RunConfig
from server.build import check_settings, run_plugins
from server.server_run import run
from fedappeal.core.registry import STRATEGIES
from fedappeal.record.lines import CHECKPOINT, MODEL
from fedappeal.record.reader import Record
from strategies.maxfl import APPEAL_WEIGHT
from tests.grid import MemoryGrid, Volunteer, time_of

arrays = {"layer.weight": np.zeros((2, 3), np.float32), "layer.bias": np.zeros(2, np.float32)}
write_safetensors(Path("initial.safetensors"), arrays, {})
for resume, rounds in ((False, 2), (True, 3)):
    grid = MemoryGrid({10 + k: Volunteer(f"c{k}", metrics={APPEAL_WEIGHT: 0.1}) for k in range(2)})
    config = RunConfig(clients=2, rounds=rounds, out="run", initial_model="initial.safetensors", resume=resume)
    with time_of(grid):
        run(grid, run_plugins(config))
assert [line["joined"] for line in Record(Path("run")).history] == [2, 2, 2]
assert Path("run", MODEL).exists() and Path("run", CHECKPOINT).exists()
for name in STRATEGIES.built_in:
    assert check_settings(RunConfig(strategy=name)).build().name == name
"""


def test_a_servers_run_with_a_given_model_and_building_every_strategy_load_no_torch(tmp_path: Path) -> None:
    assert loaded(RUN, "torch", *CLIENTS_OWN, "ray", "sklearn", "flwr_datasets", folder=tmp_path) == "[]"


def imports(folder: str) -> Iterator[tuple[Path, str, bool]]:
    """Every module that a folder's files import, and whether at once: not in a function, nor for types alone."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "templates/app/" in path.as_posix():  # a project of its own
            continue
        yield from ((path, name, at_once) for name, at_once in _imports_of(path))


@cache
def _imports_of(path: Path) -> tuple[tuple[str, bool], ...]:
    return tuple(_imports(ast.parse(path.read_text()), True))


def _imports(tree: ast.AST, at_once: bool) -> Iterator[tuple[str, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from ((f"{node.module}.{alias.name}", at_once) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        else:
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            )
            yield from _imports(node, at_once and not later)


def under(name: str, packages: list[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


RANKS = (
    ("fedappeal.settings",),
    ("fedappeal.protocol",),
    ("fedappeal.system",),
    ("fedappeal.core", "fedappeal.flower"),
    ("fedappeal.data",),
    ("fedappeal.tasks",),
    ("fedappeal.trained", "fedappeal.hf"),
    ("fedappeal.record", "fedappeal.web"),
    ("client",),
    ("strategies",),
    ("server", "fedappeal.federation"),
    ("fedappeal.simulation",),
    ("fedappeal.runs",),
    ("fedappeal.views",),
    ("fedappeal.studies",),
    ("fedappeal.reproductions",),
    ("fedappeal.api",),
    ("fedappeal.cli",),
    ("fedappeal.containers",),
    ("fedappeal",),
)
"""The packages, lowest first: each imports those below it alone."""
FOLDERS = ("fedappeal", "client", "server", "strategies")
RANK = {package: rank for rank, packages in enumerate(RANKS) for package in packages}
RULES = ["fedappeal.core", "client.training", "client.participation", "client.requirement"]
"""How clients train, decide and require: the base of local rules and policies, which algorithms derive from."""


def package_of(module: str) -> str:
    """Return the package with a rank that a module belongs to; empty: it is another project's."""
    parts = module.split(".")
    return next((p for p in (".".join(parts[:2]), parts[0]) if p in RANK), "")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def upward_arrows() -> set[tuple[str, str]]:
    """Return the pairs of packages whose imports point upwards, those in functions and for types alone included."""
    arrows = set()
    for folder in FOLDERS:
        for path, name, _ in imports(folder):
            importer = package_of(module_of(path))
            imported = package_of(name)
            if imported and importer != imported and RANK[importer] <= RANK[imported]:
                arrows.add((importer, imported))
    return arrows


def test_arrows_go_one_way() -> None:
    assert not upward_arrows()


def circle(imported: Iterable[tuple[str, str]]) -> list[str]:
    """Return modules that import each other in a circle, the first one again at the end; empty: there is none.

    Args:
        imported: a module, and a module or a name in one that it imports: in a function or for types alone, too.
    """
    pairs = list(imported)
    modules = {importer for importer, _ in pairs}
    uses: dict[str, set[str]] = {importer: set() for importer in sorted(modules)}
    for importer, name in pairs:
        parts = name.split(".")
        inside = next((part for n in range(len(parts), 0, -1) if (part := ".".join(parts[:n])) in modules), importer)
        uses[importer] |= {inside} - {importer}
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle([("a.b", "a.c.name"), ("a.c", "a.d"), ("a.d", "a.b.x")]) == ["a.b", "a.d", "a.c", "a.b"]
    assert not circle([("a.b", "a.c.name"), ("a.c", "a.d"), ("a.d", "numpy")])
    assert not circle((module_of(path), name) for folder in FOLDERS for path, name, _ in imports(folder))


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        ("client/training", ["client.app", "client.participant", "client.named"]),
        ("client/participation", ["client.app", "client.participant", "client.named"]),
        ("strategies", ["fedappeal.tasks", "fedappeal.system.files"]),
        ("server", CLIENTS_OWN),
        ("fedappeal/protocol", ["torch"]),
        ("fedappeal/hf", ["flwr"]),
        ("fedappeal/trained", ["flwr"]),
        ("fedappeal/tasks", ["flwr"]),
        ("fedappeal/views/comparison", ["client", "torch", "flwr", "scipy"]),
    ],
)
def test_a_folder_never_imports(folder: str, never: list[str]) -> None:
    imported = list(imports(folder))
    assert imported
    assert not [(path.name, name) for path, name, _ in imported if under(name, never)]


def test_strategies_need_numpy_flower_the_protocol_and_the_base_of_local_rules_only() -> None:
    outside = ["numpy", "pydantic", "flwr", *sys.stdlib_module_names]
    at_once = [*outside, "strategies", "fedappeal.protocol", "fedappeal.settings", "fedappeal.flower", *RULES]
    later = [*at_once, "torch"]  # a local rule's own mathematics
    wrong = [
        (path.name, name) for path, name, now in imports("strategies") if not under(name, at_once if now else later)
    ]
    assert not wrong


def test_reports_and_the_live_page_load_no_torch_and_a_simulation_no_control_api() -> None:
    """Starlette, FastAPI and the Control API's client take half a second, which each simulated run would pay."""
    steps = (
        ("fedappeal.views.report.report", ("torch", "flwr")),
        ("fedappeal.cli.start, fedappeal.cli.command_observers", ("fastapi", "starlette", "httpx", "torch", "ray")),
        ("fedappeal.views.live.page, fedappeal.views.live.view", ("torch", "ray")),
    )
    shown = [f"import {modules}{LOADED.replace('WANTED', repr(wanted))}" for modules, wanted in steps]
    assert python("".join(shown)).splitlines() == ["[]"] * len(steps)
