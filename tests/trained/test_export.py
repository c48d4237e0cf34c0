"""Exports: ONNX that says the same as PyTorch, and safetensors that any program reads."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.system import packages
from fedappeal.system.files import CARD
from fedappeal.trained import load_model, open_model, read_card
from fedappeal.trained.model import write_onnx, write_plain
from tests.trained.models import initial, write_model


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_onnx_gives_the_outputs_of_pytorch_for_any_number_of_examples(tmp_path: Path, model: str) -> None:
    config = RunConfig.parse({"model": model, "seed": 2})
    write_model(tmp_path / "m", initial(config), {"model": model, "seed": 2})
    write_onnx(open_model(tmp_path / "m"), tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.onnx"], "one file, weights included"
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (entry,) = session.get_inputs()
    assert (entry.name, entry.shape, entry.type) == ("input", ["batch", 1, 8, 8], "tensor(float)")
    ours = load_model(tmp_path / "m")
    for count in (1, 2, 33):
        x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(count))
        (theirs,) = session.run(None, {"input": x.numpy()})
        assert theirs.shape == (count, 10)
        assert np.abs(theirs - ours(x).detach().numpy()).max() < 1e-5


def test_the_card_is_in_the_onnx_models_metadata(tmp_path: Path) -> None:
    write_model(tmp_path / "m", initial(RunConfig(model="logistic")), {"model": "logistic"})
    write_onnx(open_model(tmp_path / "m"), tmp_path / "new" / "m.onnx")
    metadata = onnxruntime.InferenceSession(tmp_path / "new" / "m.onnx").get_modelmeta().custom_metadata_map
    assert (metadata["task"], metadata["model"], metadata["round"]) == ("digits", "logistic", "3")
    assert json.loads(metadata["normalisation"]) == {"scale": 16.0, "mean": 0.3053, "std": 0.376}
    assert json.loads(metadata[CARD]) == json.loads(read_card(tmp_path / "m").to_json())


def test_plain_safetensors_hold_the_parameters_and_the_card(tmp_path: Path) -> None:
    arrays = initial(RunConfig())
    part = {name: array + 1 for name, array in arrays.items() if name.startswith("output")}
    write_model(tmp_path / "m", part, shared=tuple(part))
    write_plain(open_model(tmp_path / "m"), tmp_path / "plain.safetensors")
    tensors = load_file(tmp_path / "plain.safetensors")
    assert set(tensors) == set(arrays), "the whole model, though the file held a part"
    assert all(np.array_equal(tensors[name].numpy(), part.get(name, arrays[name])) for name in arrays)
    with safe_open(tmp_path / "plain.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["task"], metadata["shared"]) == ("pt", "digits", "all")
    assert json.loads(metadata["input-shape"]) == [1, 8, 8]
    assert load_model(tmp_path / "plain.safetensors").state_dict().keys() == arrays.keys()


def test_missing_packages_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "m", initial(RunConfig()))
    monkeypatch.setattr(packages, "find_spec", lambda package: None if package == "onnxscript" else object())
    with pytest.raises(ConfigError, match=r"^to = 'onnx' needs onnxscript: pip install 'fedappeal\[export\]'$"):
        write_onnx(open_model(tmp_path / "m"), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"input_shape": ()}, r"^to = 'onnx' is not allowed for task 'digits': it names no input-shape"),
        ({"input_shape": (3,)}, r"^the model of task 'digits' cannot be exported: "),
        ({"input_dtype": "nn"}, r"^input-dtype = 'nn' of the card is no dtype of torch's$"),
    ],
)
def test_what_cannot_be_exported_is_one_line(tmp_path: Path, fields: dict[str, object], line: str) -> None:
    write_model(tmp_path / "m", initial(RunConfig()), **fields)
    with pytest.raises(ConfigError, match=line) as error:
        write_onnx(open_model(tmp_path / "m"), tmp_path / "m.onnx")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "m.onnx").exists()
