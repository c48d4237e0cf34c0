"""A volunteer's own `.npz`: shape, scale and split by hand, and one clear line for whatever does not fit."""

import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client.data.own_data import check_own_data, load_own_data
from client.data.refused import OwnDataError
from fedappeal.data.columns import Columns
from fedappeal.protocol.draws import generator
from fedappeal.settings.config import TaskSettings
from fedappeal.tasks import load_task
from fedappeal.tasks.task import Task

RNG = np.random.default_rng(0)
X = RNG.integers(0, 17, (20, 8, 8)).astype(np.uint8)
Y = np.arange(20) % 10
DIGITS = load_task(TaskSettings(task="digits", train_share=0.7, seed=5))


def npz(folder: Path, **arrays: Any) -> str:
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return str(path)


def test_an_npz_is_scaled_as_the_task_is_and_split_by_train_share(tmp_path: Path) -> None:
    data = load_own_data(DIGITS, npz(tmp_path, x=X, y=Y), "anna")
    order = generator(5, "split", client="anna").permutation(20)
    assert (len(data.train), len(data.test)) == (14, 6)
    for split, rows in ((data.train, order[:14]), (data.test, order[14:])):
        assert split.x.shape == (len(rows), 1, 8, 8)
        expected = (X[rows][:, None].astype(np.float64) / 16 - 0.3053) / 0.3760
        np.testing.assert_allclose(split.x.numpy(), expected, rtol=1e-5, atol=1e-6)
        assert split.y.tolist() == Y[rows].tolist()


def test_the_split_is_the_same_again_and_another_for_another_client_or_seed(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    first = load_own_data(DIGITS, path, "anna").fingerprint
    assert load_own_data(DIGITS, path, "anna").fingerprint == first
    assert load_own_data(DIGITS, path, "ben").fingerprint != first
    assert load_own_data(load_task(TaskSettings(train_share=0.7, seed=6)), path, "anna").fingerprint != first
    # How the run deals out the task's own data does not matter.
    many = load_task(TaskSettings(train_share=0.7, seed=5, clients=100_000, partition="iid"))
    assert load_own_data(many, path, "anna").fingerprint == first


@pytest.mark.parametrize(
    "x",
    [X[:, None], X.astype(np.int64), X / 16, (X / 16).astype(np.float32)[:, None]],
    ids=["with the channel's axis", "other integers", "floats from 0 to 1", "small floats"],
)
def test_the_same_images_in_other_numbers_are_the_same_data(x: np.ndarray, tmp_path: Path) -> None:
    first = load_own_data(DIGITS, npz(tmp_path, x=X, y=Y), "anna")
    again = load_own_data(DIGITS, npz(tmp_path, x=x, y=Y.astype(np.uint8)), "anna")
    torch.testing.assert_close(again.train.x, first.train.x)
    assert torch.equal(again.train.y, first.train.y)


BAD = X / 16
BAD[7, 2, 3] = np.nan


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x": X}, "it holds no array y (it holds x)"),
        ({"images": X, "labels": Y}, "it holds no array x and no array y (it holds images, labels)"),
        ({"x": X[:, :7], "y": Y}, "x has shape (20, 7, 8): (n, 1, 8, 8) or (n, 8, 8) is needed, n examples first"),
        ({"x": X[..., None], "y": Y}, "x has shape (20, 8, 8, 1)"),
        ({"x": np.float32(1), "y": Y}, "y has shape (20,), x has (): one label an example is needed"),
        ({"x": X, "y": Y[:19]}, "y has shape (19,), x has (20, 8, 8): one label an example is needed"),
        ({"x": X, "y": Y[:, None]}, "y has shape (20, 1)"),
        ({"x": X, "y": Y + 1}, "label 10 in row 9 of y: 0 to 9 are allowed"),
        ({"x": X, "y": Y - 1}, "label -1 in row 0 of y: 0 to 9 are allowed"),
        ({"x": X, "y": Y.astype(np.uint64) + 2**63}, "label 9223372036854775808 in row 0"),
        ({"x": X, "y": Y / 1}, "y is of type float64: integers are allowed"),
        ({"x": X.astype(str), "y": Y}, "x is of type <U3: integers and floats are allowed"),
        ({"x": X > 3, "y": Y}, "x is of type bool: integers and floats are allowed"),
        ({"x": X.astype(object), "y": Y}, "x is of type object: integers and floats are allowed"),
        ({"x": BAD, "y": Y}, "row 7 of x holds a value that is not finite"),
        ({"x": X * 15, "y": Y}, "a pixel is 240: for task 'digits' they are integers from 0 to 16, or floats from 0"),
        (
            {"x": X / 1, "y": Y},
            "a pixel is 16: for task 'digits' they are integers from 0 to 16, or floats from 0 to 1",
        ),
        ({"x": X.astype(int) - 1, "y": Y}, "a pixel is -1: "),
        ({"x": X[:9], "y": Y[:9]}, "9 examples are fewer than min-examples = 10"),
        ({"x": X[:0], "y": Y[:0]}, "0 examples are fewer than min-examples = 10"),
    ],
)
def test_what_does_not_fit_is_one_line(arrays: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = npz(tmp_path, **arrays)
    with pytest.raises(OwnDataError) as caught:
        load_own_data(DIGITS, path, "anna")
    assert str(caught.value).startswith(f"data = '{path}' is not allowed: {expected}")
    assert "\n" not in str(caught.value)


def test_one_example_cannot_be_split_however_few_are_enough(tmp_path: Path) -> None:
    task = load_task(TaskSettings(min_examples=1))
    with pytest.raises(OwnDataError, match=r"1 examples are fewer than min-examples = 1 .2 at least, to train on"):
        load_own_data(task, npz(tmp_path, x=X[:1], y=Y[:1]), "anna")
    data = load_own_data(task, npz(tmp_path, x=X[:2], y=Y[:2]), "anna")
    assert (len(data.train), len(data.test)) == (1, 1)


def damaged(path: Path) -> None:
    np.savez(path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:-40])


def damaged_in_its_compression(path: Path) -> None:
    np.savez_compressed(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.infolist()[0].header_offset
    # A local header: 30 bytes, then the name and the extra field, whose lengths stand at 26 and 28.
    at += (
        30
        + int.from_bytes(content[at + 26 : at + 28], "little")
        + int.from_bytes(content[at + 28 : at + 30], "little")
    )
    content[at : at + 16] = b"\xff" * 16
    path.write_bytes(content)


def damaged_inside(path: Path) -> None:
    np.savez(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    at = content.find(X.tobytes()[:64])
    content[at : at + 64] = bytes(64)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "write", "expected"),
    [
        ("none.npz", lambda path: None, "no such file or folder"),
        (
            "mine.txt",
            lambda path: path.write_text("1,2"),
            "a file of data is a .csv, .jsonl or .parquet with a column of",
        ),
        ("mine.npz", lambda path: path.write_text("1,2"), "not an .npz that can be read"),
        ("mine.npz", lambda path: path.touch(), "not an .npz that can be read"),
        ("mine.npz", damaged, "not an .npz that can be read"),
        ("mine.npz", lambda path: np.save(path.open("wb"), X), "not an .npz: it holds one array without a name"),
        ("folder", lambda path: path.mkdir(), "it holds no folders: one folder a class is needed"),
    ],
)
def test_data_of_no_known_kind_is_refused_before_a_run_asks(
    name: str, write: Any, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    write(path)
    for act in (lambda: check_own_data(str(path)), lambda: load_own_data(DIGITS, str(path), "anna")):
        with pytest.raises(
            OwnDataError, match=rf"data = '{re.escape(str(path))}' is not allowed: {expected}"
        ) as caught:
            act()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [(damaged_inside, "Bad CRC-32"), (damaged_in_its_compression, "Error -3 while decompressing")],
)
def test_an_array_that_is_damaged_inside(damage: Any, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    damage(path)
    for act in (lambda: check_own_data(str(path)), lambda: load_own_data(DIGITS, str(path), "anna")):
        with pytest.raises(OwnDataError, match=rf"its array x cannot be read .{expected}"):
            act()


def test_what_no_task_can_take_is_said_before_a_run_asks(tmp_path: Path) -> None:
    for arrays, expected in (
        ({"x": X, "y": Y[:19]}, "y has shape (19,), x has (20, 8, 8): one label an example is needed"),
        ({"x": BAD, "y": Y}, "row 7 of x holds a value that is not finite"),
        ({"x": X, "y": Y.astype(str)}, "y is of type <U21: integers and floats are allowed"),
    ):
        with pytest.raises(OwnDataError) as caught:
            check_own_data(npz(tmp_path, **arrays))  # type: ignore[arg-type]
        assert str(caught.value).endswith(f"is not allowed: {expected}")
    check_own_data(npz(tmp_path, x=X[:, :7], y=Y + 0.5))  # another task may take these


def test_labels_of_an_npz_that_are_no_classes_are_floats(tmp_path: Path) -> None:
    class Heat(Sensors):
        num_classes = 0

        def inputs(self, raw: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(raw).float()

    x, y = RNG.normal(size=(12, 3)), np.arange(12)
    data = load_own_data(Heat(TaskSettings(task="sensors:Heat")), npz(tmp_path, x=x, y=y), "anna")
    found = torch.cat((data.train.y, data.test.y))  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    assert sorted(found.tolist()) == y.tolist()


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": X}, "columns"),
        ({"x": X[:, :7], "y": Y}, "shape"),
        ({"x": X, "y": Y[:19]}, "shape"),
        ({"x": X, "y": Y + 1}, "labels"),
        ({"x": X, "y": Y / 1}, "labels"),
        ({"x": X.astype(str), "y": Y}, "values"),
        ({"x": X * 15, "y": Y}, "values"),
        ({"x": X[:9], "y": Y[:9]}, "too-few"),
        ({"x": X.astype(object), "y": Y}, "values"),
    ],
)
def test_the_category_that_the_server_learns(arrays: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(OwnDataError) as caught:
        load_own_data(DIGITS, npz(tmp_path, **arrays), "anna")
    assert caught.value.problem.value == problem


class Sensors(Task):
    """A task of one's own that is no image, and takes what a client brings as it is."""

    input_shape, num_classes = (3,), 2

    def initial_model(self, seed: int) -> Any: ...

    def load(self, client: int) -> Any: ...


def test_a_task_of_ones_own_says_how_inputs_are_taken(tmp_path: Path) -> None:
    x, y = RNG.normal(size=(12, 3)), np.arange(12) % 2
    path = npz(tmp_path, x=x, y=y)
    with pytest.raises(OwnDataError, match="task 'sensors:Sensors' takes no data of a client's own"):
        load_own_data(Sensors(TaskSettings(task="sensors:Sensors")), path, "anna")

    class Taking(Sensors):
        def inputs(self, raw: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(raw).float() * 2

    data = load_own_data(Taking(TaskSettings(task="sensors:Taking")), path, "anna")
    found = torch.cat((data.train.x, data.test.x))
    np.testing.assert_allclose(np.sort(found.numpy(), axis=0), np.sort(2 * x, axis=0), rtol=1e-6)
    (tmp_path / "images" / "0").mkdir(parents=True)
    with pytest.raises(
        OwnDataError, match=r"the task's inputs have shape \(3,\), which images have not: give an .npz"
    ):
        load_own_data(Taking(TaskSettings(task="sensors:Taking")), str(tmp_path / "images"), "anna")


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.parquet"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for read in (check_own_data, lambda data: load_own_data(DIGITS, data, "anna")):
        with pytest.raises(OwnDataError, match="a pipe, a device or") as error:
            read(str(tmp_path / name))
        assert error.value.problem == "unreadable"


def test_the_owners_line_is_short_and_holds_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x,y\n\x1b[31m{'9' * 5_000},1\n")
    with pytest.raises(OwnDataError, match=r"column x: '.\[31m9") as error:
        check_own_data(str(tmp_path / "a.csv"), Columns(("x",), "y"))
    assert str(error.value).isprintable()
    assert len(str(error.value)) == 1000
