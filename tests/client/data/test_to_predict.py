"""Examples for a trained model: where labels come from, and what cannot be read."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from client.data import to_predict
from client.data.to_predict import Batch, examples_of, scaler_from
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import load_task
from fedappeal.trained.card import ModelCard

TASK = load_task(RunConfig().task_settings())
CARD = ModelCard.of(TASK, RunConfig(), round=1, run_key="", figures={}, measured_on="")
X = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.uint8)


def save(path: Path, value: int = 255) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(path)


def read(path: Path, card: ModelCard = CARD) -> tuple[list[Batch], str]:
    found = examples_of(path, card, TASK)
    return list(found.batches), found.unlabelled


def test_class_folders_give_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("7/a.png", 51), ("0/deep/b.png", 102), ("0/c.png", 255)):
        save(tmp_path / name, value)
    (tmp_path / "0" / "notes.txt").write_text("no image")
    monkeypatch.setattr(to_predict, "BATCH", 2)
    (first, second), unlabelled = read(tmp_path)
    assert (first.names, second.names, unlabelled) == (["0/c.png", "0/deep/b.png"], ["7/a.png"], "")
    assert first.raw.shape == (2, 1, 8, 8)
    assert [float(raw[0, 0, 0]) for raw in (*first.raw, *second.raw)] == pytest.approx([1.0, 0.4, 0.2])
    assert first.labels is not None
    assert second.labels is not None
    assert (first.labels.tolist(), second.labels.tolist()) == ([0, 0], [7])


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["b.png", "a.png"], "it holds no folders"),
        (["2024-05/b.png", "2024-04/a.png"], "class folder '2024-04' is no label of the task"),
        (["3/b.png", "a.png"], "it holds images outside of class folders"),
    ],
)
def test_other_folders_are_searched_for_images_without_labels(tmp_path: Path, names: list[str], reason: str) -> None:
    for name in names:
        save(tmp_path / name)
    (batch,), unlabelled = read(tmp_path)
    assert sorted(batch.names) == sorted(names)
    assert batch.labels is None
    assert unlabelled.startswith(reason)


def test_an_npz_with_and_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_predict, "BATCH", 3)
    np.savez(tmp_path / "a.npz", x=X, y=np.arange(5))
    batches, unlabelled = read(tmp_path / "a.npz")
    assert [batch.names for batch in batches] == [["0", "1", "2"], ["3", "4"]]
    assert np.array_equal(np.concatenate([batch.raw for batch in batches]), X[:, None])
    assert [batch.labels.tolist() for batch in batches if batch.labels is not None] == [[0, 1, 2], [3, 4]]
    assert unlabelled == ""
    np.savez(tmp_path / "b.npz", x=X[:, None])
    batches, unlabelled = read(tmp_path / "b.npz")
    assert {batch.labels is None for batch in batches} == {True}
    assert unlabelled == "it holds no array y"
    batches, unlabelled = read(tmp_path / "a.npz", CARD.model_copy(update={"num_classes": 0}))
    assert [batch.labels.tolist() for batch in batches if batch.labels is not None] == [[0.0, 1.0, 2.0], [3.0, 4.0]]
    assert unlabelled == ""


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({"y": np.arange(5)}, r"it holds no array x \(it holds y\)"),
        ({"x": X[:, :7]}, r"x has shape \(5, 7, 8\): \(n, 1, 8, 8\) or \(n, 8, 8\) is needed"),
        ({"x": X[:0]}, r"x has shape \(0, 8, 8\): one example at least is needed"),
        ({"x": X.astype("S3")}, r"x is of type \|S3: integers and floats are allowed"),
        ({"x": np.where(X[:, :, :] == X[3, 0, 0], np.nan, X / 16.0)}, "row . of x holds a value that is not finite"),
        ({"x": np.float32(1)}, r"x has shape \(\): one row an example is needed"),
        ({"x": X, "y": np.arange(4)}, r"y has shape \(4,\), x has \(5, 8, 8\): one label an example is needed"),
        ({"x": X, "y": np.arange(5) / 2}, "y is of type float64: integers are allowed"),
        ({"x": X, "y": np.arange(5) + 6}, "label 10 in row 4 of y: 0 to 9 are allowed"),
    ],
)
def test_an_npz_that_does_not_fit_is_one_line(tmp_path: Path, arrays: dict[str, np.ndarray], line: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ConfigError, match=f"^data = '{tmp_path}/a.npz' is not allowed: {line}"):
        read(tmp_path / "a.npz")


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_text("no image")
    (tmp_path / "a.csv").write_text("1,2")
    (tmp_path / "a.txt").write_text("1,2")
    np.savez(tmp_path / "a.npz", x=X)
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "loop.npz").symlink_to("loop.npz")
    vectors = CARD.model_copy(update={"input_shape": (64,)})
    for name, card, line in (
        ("nothing", CARD, "no such file or folder"),
        ("pipe.csv", CARD, "it is no file, but a pipe"),
        ("loop.npz", CARD, "it is no file, but a pipe, a device or a link that leads nowhere"),
        ("a.csv", CARD, r"2 columns of features, where the task.s inputs have shape \(1, 8, 8\): 64 are needed"),
        ("a.txt", CARD, "a file of data is a .csv, a .jsonl, a .parquet or an .npz with an array x"),
        ("empty", CARD, "it holds no images"),
        ("broken", CARD, "image .*a.png cannot be read"),
        ("broken", vectors, r"the task's inputs have shape \(64,\), which images have not"),
        ("a.npz", CARD.model_copy(update={"input_shape": ()}), "task 'digits' names no input-shape"),
    ):
        with pytest.raises(ConfigError, match=f"^data = '{tmp_path}/{name}' is not allowed: {line}") as error:
            read(tmp_path / name, card)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"^scale-from = .*pipe\.csv' is not allowed: it is no file"):
        scaler_from(str(tmp_path / "pipe.csv"), vectors, TASK)
