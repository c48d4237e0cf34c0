"""docs/tasks.md: the task for volunteers with tables, exactly as printed, learns from what the page says."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from client.data.own_data import check_own_data, load_own_data
from client.data.refused import OwnDataError
from fedappeal.data.columns import Columns
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError
from fedappeal.tasks import load_task
from tests.docs.pages import DOCS, files, write_files
from tests.node import Node, run_config

LABEL = Columns(label="kind")
CONFIG = run_config(
    task="mine.plants:Plants",
    clients=1,
    participation="always",
    strategy="fedavg",
    local_steps=200,
    learning_rate=0.2,
)
NAMES = ("setosa", "versicolor", "virginica")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(write_files("tasks.md", tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def table(folder: Path) -> str:
    """Write the irises under the page's header, with its row in front."""
    text = (DOCS / "tasks.md").read_text()
    header, first = text[text.index("date,petal-length") :].splitlines()[:2]
    x, y = load_iris(return_X_y=True)
    rows = [f"2024-05-02,{x[k, 2]},{x[k, 3]},{x[k, 0]},{x[k, 1]},{NAMES[y[k]]}" for k in range(len(y))]
    assert rows[0] == first
    (folder / "iris.csv").write_text("\n".join([header, *rows]) + "\n")
    np.savetxt(folder / "iris.txt", np.column_stack([x, y]))
    return str(folder / "iris.csv")


def test_a_volunteers_table_is_learned_from(folder: Path) -> None:
    path = table(folder)
    check_own_data(path, LABEL)
    node = Node(CONFIG, data=path, label="kind", partition_id=-1, allow="mine")
    told = node.reply("query", fingerprint=load_task(CONFIG.task_settings()).fingerprint)
    assert told.content[keys.METRICS][keys.NUM_EXAMPLES] == 90  # type: ignore[index]
    before = float(node.metrics("evaluate")["accuracy"])  # type: ignore[arg-type]
    trained = node("train").array_records[keys.ARRAYS]
    after = float(node.metrics("evaluate", trained)["accuracy"])  # type: ignore[arg-type]
    assert before < 0.7
    assert after > 0.85


def test_the_function_of_the_page_loads_the_same(folder: Path) -> None:
    path, task = table(folder), load_task(CONFIG.task_settings())
    by_table, by_function = (load_own_data(task, data, "anna", LABEL) for data in (path, "mine.files:load"))
    assert by_table.fingerprint == by_function.fingerprint


def test_it_has_no_data_of_its_own(folder: Path) -> None:
    task = load_task(CONFIG.task_settings())
    with pytest.raises(ConfigError, match="each client brings a table"):
        task.load(0)
    (folder / "mine.csv").write_text("petal-length,kind\n1,setosa\n")
    with pytest.raises(OwnDataError, match="it has no column sepal-length and no column sepal-width"):
        load_own_data(task, str(folder / "mine.csv"), "anna", LABEL)


def test_the_examples_are_short() -> None:
    """Statements, a line each as printed; blank lines and docstrings do not count."""
    counted = {}
    for path, text in files("tasks.md").items():
        documented = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }
        lines = enumerate(text.splitlines(), start=1)
        counted[path] = sum(
            bool(line.strip()) and not line.startswith("#") and n not in documented for n, line in lines
        )
    assert counted == {"mine/slope.py": 26, "mine/plants.py": 13, "mine/files.py": 4}
