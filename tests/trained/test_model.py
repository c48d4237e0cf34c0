"""A trained model, rebuilt from its file."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system.files import write_safetensors
from fedappeal.trained import load_model, open_model
from fedappeal.trained.model import read_task
from tests.trained.models import MINE, initial, write_model

CNN = RunConfig(model="cnn", seed=4)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A task of one's own, importable until the test is over."""
    (tmp_path / "moons_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "moons_of_mine", raising=False)
    return {"task": "moons_of_mine:Moons"}


def test_the_model_has_the_files_values_and_is_ready_to_predict(tmp_path: Path) -> None:
    arrays = {name: np.full_like(array, 0.5) for name, array in initial(CNN).items()}
    write_model(tmp_path / "model.safetensors", arrays, {"model": "cnn", "seed": 4})
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        model = load_model(path)
        assert not model.training
        assert {type(layer).__name__ for layer in model} >= {"Conv2d", "MaxPool2d"}  # type: ignore[attr-defined]
        assert all(bool((tensor == 0.5).all()) for tensor in model.state_dict().values())


def test_a_part_of_the_arrays_is_laid_over_the_initial_model(tmp_path: Path) -> None:
    before = initial(CNN)
    part = {name: array + 1 for name, array in before.items() if name.startswith("conv1")}
    write_model(tmp_path / "m", part, {"model": "cnn", "seed": 4}, shared=tuple(part))
    after = load_model(tmp_path / "m").state_dict()
    assert set(after) == set(before)
    for name, array in before.items():
        assert np.array_equal(after[name].numpy(), part.get(name, array)), name


def test_a_given_model_is_copied_and_filled(tmp_path: Path) -> None:
    own = torch.nn.Linear(2, 1)
    before = own.weight.detach().clone()
    values = {"weight": np.array([[3.0, 4.0]], np.float32), "bias": np.array([1.0], np.float32)}
    write_model(tmp_path / "m", values, task="nowhere:Task")
    write_safetensors(tmp_path / "old", values, {})  # of a version without cards
    for name in ("m", "old"):
        model = load_model(tmp_path / name, model=own)
        assert model(torch.tensor([1.0, 2.0])).item() == 12.0
        assert torch.equal(own.weight, before)
    write_model(tmp_path / "part", {"bias": values["bias"]}, shared=("bias",))
    part = load_model(tmp_path / "part", model=own)
    assert torch.equal(part.weight, before)
    assert part.bias.item() == 1.0


def test_code_that_a_lone_file_names_runs_only_where_it_is_allowed(tmp_path: Path, mine: dict[str, str]) -> None:
    arrays = {"weight": np.eye(2, dtype=np.float32), "bias": np.zeros(2, np.float32)}
    write_model(tmp_path / "model.safetensors", arrays, dict(mine))
    del sys.modules["moons_of_mine"]
    for allow in ((), ("other",)):
        with pytest.raises(ConfigError, match=r"is a model of task 'moons_of_mine:Moons': .*--allow moons_of_mine"):
            load_model(tmp_path / "model.safetensors", allow=allow)
        assert "moons_of_mine" not in sys.modules
    opened = open_model(tmp_path / "model.safetensors", allow=["moons_of_mine"])
    assert opened.card.class_names == opened.task.class_names == ("north", "south")
    (tmp_path / "config.json").write_text("{}")  # a file that anyone can write
    with pytest.raises(ConfigError, match="--allow moons_of_mine"):
        load_model(tmp_path)
    assert load_model(tmp_path, allow=["moons_of_mine"]).weight.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_one_line_names_all_that_has_to_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("task_of_mine", "nets_of_mine"):
        Path(f"{name}.py").write_text("raise SystemExit")
    card = write_model(tmp_path / "digits", {})
    settings = {**card.settings, "model": "nets_of_mine:Net"}
    card = card.model_copy(update={"task": "task_of_mine:T", "settings": settings})
    needed = "--allow nets_of_mine --allow task_of_mine --allow . (the current folder)"
    with pytest.raises(ConfigError) as refused:
        read_task(card, tmp_path / "digits")
    line = "task = 'task_of_mine:T' and model = 'nets_of_mine:Net' is not allowed: code that it names runs only with"
    assert str(refused.value).endswith(f"{line} {needed}")


def test_a_task_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    for task, line in (
        ("not_here:Task", "No module named 'not_here'"),
        ("spiral", "'spiral' is not allowed: digits"),
    ):
        write_model(path, {}, task=task)
        with pytest.raises(ConfigError, match=f"is a model of task '{task}': task = .*{line}") as error:
            load_model(path, allow=["not_here"])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda arrays: arrays.pop("output.bias"), "it lacks array 'output.bias'"),
        (lambda arrays: arrays.update(more=np.ones(1)), "the model has no array 'more'"),
        (lambda arrays: arrays.update({"output.bias": np.ones(3)}), r"'output.bias' has shape \(3,\), not \(10,\)"),
    ],
)
def test_another_models_values_are_one_line(tmp_path: Path, change: object, line: str) -> None:
    arrays = initial(RunConfig())
    assert callable(change)
    change(arrays)
    write_model(tmp_path / "m", arrays)
    with pytest.raises(ConfigError, match=f"does not hold this model: {line}"):
        load_model(tmp_path / "m")


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no model\.safetensors: it is not a run's folder"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds no model\.safetensors: its run is not over"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match=r"is not there: give a run's folder, or a file"):
        load_model(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe.safetensors", "loop"):
        with pytest.raises(ConfigError, match=r"is no file: give a run's folder, or a file"):
            load_model(tmp_path / name)
    (tmp_path / "text").write_text("no model")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path / "text")
