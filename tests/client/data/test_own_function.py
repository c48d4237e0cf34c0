"""The owner's own function: what it may return, in which form, and what comes of its failures."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import client.data.own_function
from client.data.own_data import check_own_data, load_own_data
from client.data.refused import OwnDataError
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks.examples import with_held_out
from fedappeal.tasks.task import ClientData, Split, Task
from tests.plugin_folder import write_module

SETTINGS = TaskSettings(task="mine:Task", train_share=0.5, min_examples=2, seed=3)
X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6) % 3
TEST_ROWS = generator(3, "split", client="anna").permutation(6)[3:]


class Points(Task):
    input_shape, num_classes = (2,), 3

    def initial_model(self, seed: int) -> Any: ...

    def load(self, client: int) -> Any: ...

    def inputs(self, raw: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(raw.astype(np.float32)) * 10


class Words(Points):
    """Token ids in a dict, several labels an example."""

    input_shape = ()


class Heat(Points):
    num_classes = 0


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ClientData]]:
    """Loads what a function returned."""

    def load(found: object, task: type[Task] = Points, **settings: Any) -> ClientData:
        monkeypatch.setattr(client.data.own_function, "find_function", lambda name: lambda task: found)
        return load_own_data(task(SETTINGS.model_copy(update=settings)), "mine:load", "anna")

    return load


def tensors(x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


@pytest.mark.parametrize(
    ("found", "scale"),
    [
        ((X, Y), 10),  # raw: the task scales it
        ((pandas.DataFrame(X), pandas.Series(Y)), 10),
        ((X, Y.astype(np.uint8)), 10),
        (tensors(X, Y), 1),
        (Split(*tensors(X, Y)), 1),
        (Split(torch.from_numpy(X).float(), torch.from_numpy(Y).int()), 1),
    ],
)
def test_examples_are_split_as_a_file_is(returns: Callable[..., ClientData], found: object, scale: int) -> None:
    data = returns(found)
    assert (len(data.train), len(data.test)) == (3, 3)
    assert torch.equal(data.test.x, torch.from_numpy(X[TEST_ROWS]).float() * scale)  # type: ignore[arg-type]
    assert data.test.y.tolist() == Y[TEST_ROWS].tolist()  # type: ignore[union-attr]
    assert data.test.y.dtype == torch.int64  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "found",
    [
        ((X[:4] / 10, Y[:4]), (X[4:] / 10, Y[4:])),
        (Split(*tensors(X[:4], Y[:4])), Split(*tensors(X[4:], Y[4:]))),
        ((X[:4] / 10, Y[:4]), Split(*tensors(X[4:], Y[4:]))),
        ClientData(Split(*tensors(X[:4], Y[:4])), Split(*tensors(X[4:], Y[4:]))),
    ],
)
def test_the_owners_own_split_stays(returns: Callable[..., ClientData], found: object) -> None:
    data = returns(found)
    torch.testing.assert_close(data.train.x, torch.from_numpy(X[:4]).float())
    torch.testing.assert_close(data.test.x, torch.from_numpy(X[4:]).float())
    assert data.train.y.tolist() == [0, 1, 2, 0]  # type: ignore[union-attr]
    # The run's limit holds for it too, and not the first rows alone are kept.
    kept = generator(3, "split", client="anna").permutation(4)[:2]
    limited = returns(found, max_train_examples=2)
    torch.testing.assert_close(limited.train.x, torch.from_numpy(X[kept]).float())
    assert len(limited.test) == 2


def test_what_the_owner_holds_out_is_held_out(returns: Callable[..., ClientData]) -> None:
    train, test, held_out = (Split(*tensors(X[rows], Y[rows])) for rows in (slice(3), slice(3, 5), slice(5, 6)))
    data = with_held_out(returns(ClientData(train, test, held_out)))
    assert data.held_out is not None
    assert torch.equal(data.held_out.x, held_out.x)  # type: ignore[arg-type]
    assert data.counts == (3, 2)


def test_structures_of_any_type_go_to_the_model_as_they_are(returns: Callable[..., ClientData]) -> None:
    tokens = {"ids": np.arange(24).reshape(6, 4), "mask": torch.ones(6, 4, dtype=torch.bool), "age": np.ones(6)}
    labels = np.tile([0, 2, -100, 1], (6, 1))  # one a token; -100 counts for nothing
    data = returns((tokens, labels), Words)
    assert {name: tensor.dtype for name, tensor in data.test.x.items()} == {  # type: ignore[union-attr]
        "ids": torch.int64,
        "mask": torch.bool,
        "age": torch.float32,
    }
    assert data.test.x["ids"].tolist() == tokens["ids"][TEST_ROWS].tolist()  # type: ignore[call-overload, index]
    assert data.test.y.tolist() == labels[TEST_ROWS].tolist()  # type: ignore[union-attr]
    pair = returns(((X, torch.ones(6, 3)), Y), Words)
    assert [tuple(each.shape) for each in pair.train.x] == [(3, 2), (3, 3)]  # type: ignore[union-attr]
    several = returns((X, np.eye(6, 3)))  # a label each, as floats
    assert several.train.y.dtype == torch.float32  # type: ignore[union-attr]
    assert returns((X, np.arange(6) / 2), Heat).train.y.dtype == torch.float32  # type: ignore[union-attr]


BAD = X.copy()
BAD[4, 1] = np.inf
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("found", "expected", "problem"),
    [
        (None, "it returned NoneType: (x, y), a Split, or a (train, test) pair of these is allowed", "shape"),
        ((X, Y, Y), "it returned tuple: ", "shape"),
        ((X, Y[:5]), "one row an example is needed: x has 6, y has 5", "shape"),
        (({"a": X, "b": X[:4]}, Y), "one row an example is needed: x/a has 6, x/b has 4, y has 6", "shape"),
        ((X.tolist(), Y.tolist()), "x/0/0 is of type float, without rows: tensors and arrays are allowed", "shape"),
        ((X, "y"), "y is of type str, without rows", "shape"),
        ((X[:, :1], Y), "x has shape (6, 1): (n, 2) is needed", "shape"),
        ((torch.ones(6, 3), torch.from_numpy(Y)), "x has shape (6, 3): (n, 2) is needed", "shape"),
        ((BAD, Y), "an array holds a value that is not finite", "values"),
        ((torch.from_numpy(BAD), torch.from_numpy(Y)), "x holds a value that is not finite", "values"),
        ((X.astype(str), Y), "an array is of type <U32: numbers are allowed", "values"),
        ((X, Y + 1), "label 3 in row 2 of y: 0 to 2 are allowed", "labels"),
        ((X, Y - 100), "label -100 in row 0 of y: 0 to 2 are allowed", "labels"),
        ((X, Y / 2), "y is of type torch.float32: whole numbers are needed", "labels"),
        ((X, np.full((6, 2), 5)), "label 5 in row 0 of y", "labels"),
        ((X[:1], Y[:1]), "1 examples are fewer than min-examples = 2", "too-few"),
        ((torch.from_numpy(X).to_sparse(), torch.from_numpy(Y)), "NotImplementedError: ", "unreadable"),
        ((ENDLESS, Y), "RecursionError: ", "unreadable"),
        (((X, Y), (X[:0], Y[:0])), "one example at least is needed to train on, and one to test with", "too-few"),
    ],
)
def test_what_does_not_fit_is_one_line(
    returns: Callable[..., ClientData], found: object, expected: str, problem: str
) -> None:
    with pytest.raises(OwnDataError) as caught:
        returns(found)
    assert str(caught.value).startswith(f"data = 'mine:load' is not allowed: {expected}")
    assert "\n" not in str(caught.value)
    assert caught.value.problem.value == problem


def load(name: str) -> Callable[[], object]:
    return lambda: load_own_data(Points(SETTINGS), name, "anna")


AT_START = [
    ("", "owned:load", "cannot be imported: AttributeError: module 'owned' has no attribute 'load'"),
    ("", "owner:load", "cannot be imported: ModuleNotFoundError: No module named 'owner'"),
    ("1 +", "owned:load", "cannot be imported: SyntaxError: invalid syntax"),
    ("import sys\nsys.exit('no files')", "owned:load", "cannot be imported: SystemExit: no files"),
    ("load = 3", "owned:load", "load is not callable"),
]
LATER = [
    ("def load(): ...", "owned:load", "it failed: TypeError: load() takes 0 positional arguments"),
    ("def load(task):\n    open('/patients.csv')", "owned:load", "it failed: FileNotFoundError: "),
    ("def load(task):\n    raise SystemExit('a\\nb')", "owned:load", "it failed: SystemExit: a b"),
    (
        "class End(BaseException): ...\ndef load(task):\n    raise End('now')",
        "owned:load",
        "it failed: End: now",
    ),
    (
        "class End(BaseException): ...\nraise End('now')",
        "owned:load",
        "its import ended the program (now)",
    ),
]


@pytest.mark.parametrize(("code", "name", "expected"), [*AT_START, *LATER])
def test_a_function_that_is_not_there_or_fails(
    code: str, name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, "owned", code)
    monkeypatch.syspath_prepend(tmp_path)
    for act in (load(name), *([lambda: check_own_data(name)] if (code, name, expected) in AT_START else [])):
        with pytest.raises(OwnDataError) as caught:
            act()
        assert str(caught.value).startswith(f"data = '{name}' is not allowed: {expected}")
        assert "\n" not in str(caught.value)
        assert caught.value.problem.value == "unreadable"


def test_an_interrupt_while_it_is_imported_ends_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, "interrupted", "raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        check_own_data("interrupted:load")


def test_a_fault_of_the_tasks_own_code_says_where(returns: Callable[..., ClientData]) -> None:
    class Faulty(Points):
        def inputs(self, raw: Any) -> Any:
            return raw.nowhere

    with pytest.raises(OwnDataError, match=r"AttributeError: .*'nowhere' \(.*test_own_function.py:\d+\)$"):
        returns((X, Y), Faulty)


def test_too_little_memory_is_no_fault_of_the_data(returns: Callable[..., ClientData]) -> None:
    class Large(Points):
        def inputs(self, raw: Any) -> Any:
            raise MemoryError

    with pytest.raises(MemoryError):
        returns((X, Y), Large)


def test_it_is_called_with_the_task_and_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import numpy as np

class Files:
    def load(task):
        return np.ones((8, *task.input_shape)), np.arange(8) % task.num_classes
"""
    write_module(tmp_path, "owned", code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    check_own_data("owned:Files.load")
    data = load_own_data(Points(SETTINGS), "owned:Files.load", "anna")
    assert data.train.x.tolist() == [[10.0, 10.0]] * 4  # type: ignore[union-attr]
