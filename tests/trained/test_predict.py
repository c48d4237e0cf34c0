"""Predictions: against a logistic regression worked out with NumPy."""

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from fedappeal.api.trained import predict_table
from fedappeal.cli.models import _file_text as file_text
from fedappeal.cli.models import _lines as shown
from fedappeal.data.columns import Columns
from fedappeal.data.scaling import Scaling
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.task import Normalisation
from fedappeal.trained import open_model
from fedappeal.trained.model import Prediction, TrainedModel, predict, write_onnx
from tests.trained.models import write_model

RNG = np.random.default_rng(3)
WEIGHT, BIAS = RNG.normal(size=(10, 64)).astype(np.float32), RNG.normal(size=10).astype(np.float32)
PIXELS = RNG.integers(0, 17, (7, 1, 8, 8)).astype(np.uint8)
NAMES = [f"image {k}" for k in range(7)]


def trained(folder: Path, **fields: object) -> TrainedModel:
    write_model(folder / "m", {"output.weight": WEIGHT, "output.bias": BIAS}, {"model": "logistic"}, **fields)
    return open_model(folder / "m")


def by_hand(scale: float, mean: float, std: float) -> tuple[list[int], list[float]]:
    x = (PIXELS.reshape(7, 64) / scale - mean) / std
    logits = x @ WEIGHT.T.astype(np.float64) + BIAS
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares.argmax(axis=1).tolist(), shares.max(axis=1).tolist()


def test_labels_probabilities_and_accuracy(tmp_path: Path) -> None:
    labels, probabilities = by_hand(16.0, 0.3053, 0.376)
    given = np.array([*labels[:4], *((label + 1) % 10 for label in labels[4:])], dtype=np.int64)
    batches = [(NAMES[:5], PIXELS[:5], given[:5]), (NAMES[5:], PIXELS[5:], given[5:])]
    found = predict(trained(tmp_path), batches)
    assert [line.example for line in found.lines] == NAMES
    assert [line.label for line in found.lines] == [str(label) for label in labels]
    assert [line.probability for line in found.lines] == pytest.approx(probabilities, rel=1e-4)
    assert [line.given for line in found.lines] == [str(label) for label in given]
    assert found.labelled == 7
    assert found.metrics == {"accuracy": pytest.approx(4 / 7)}


def test_without_labels_nothing_is_measured(tmp_path: Path) -> None:
    names = tuple("abcdefghij")
    found = predict(trained(tmp_path, class_names=names), [(NAMES, PIXELS, None)])
    assert [line.label for line in found.lines] == [names[label] for label in by_hand(16.0, 0.3053, 0.376)[0]]
    assert (found.labelled, found.metrics, {line.given for line in found.lines}) == (0, {}, {""})


def test_the_card_scales_where_the_task_here_has_other_constants(tmp_path: Path) -> None:
    found = predict(trained(tmp_path, normalisation=Normalisation(32.0, 0.1, 2.0)), [(NAMES, PIXELS, None)])
    labels, probabilities = by_hand(32.0, 0.1, 2.0)
    assert [line.label for line in found.lines] == [str(label) for label in labels]
    assert [line.probability for line in found.lines] == pytest.approx(probabilities, rel=1e-4)


def test_values_out_of_range_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^the data are not allowed, image 0 to image 6: a pixel is 20: .* 0 to 16"
    ):
        predict(trained(tmp_path), [(NAMES, PIXELS + np.uint8(4), None)])


class Middle(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("dtype", "value", "given", "line"),
    [
        (torch.float32, 16.932102, 16.9321, "a  16.9321"),
        (torch.float32, 1234567.9, -2.5, "a  1.23457e+06  (is -2.5)"),
        (torch.float64, 1 / 3, 3, "a  0.333333  (is 3)"),
        (torch.float64, 0.5, 2**60 + 1, "a  0.5  (is 1.15292e+18)"),
    ],
)
def test_a_task_whose_labels_are_no_classes_predicts_numbers_in_full(
    tmp_path: Path, dtype: torch.dtype, value: float, given: float, line: str
) -> None:
    opened = trained(tmp_path, num_classes=0)
    model = TrainedModel(opened.card, opened.task, Middle())
    labels = torch.tensor([given], dtype=torch.int64 if isinstance(given, int) else torch.float32)
    found = predict(model, [(["a"], torch.full((1, 1), value, dtype=dtype), labels)])
    assert found.lines == [("a", value, None, given)]
    assert list(shown(found.lines)) == [line]
    assert json.loads(file_text(found.lines, ".jsonl")) == {"example": "a", "label": value, "given": given}
    assert file_text(found.lines, ".csv").splitlines()[1] == f"a,{value},{given}"


def test_a_predicted_number_that_is_not_finite_is_null_as_json() -> None:
    line = Prediction("a", math.nan, math.inf, -math.inf)
    nulls = {"label": None, "probability": None, "given": None}
    assert json.loads(file_text([line], ".jsonl")) == {"example": "a", **nulls}


def test_outputs_of_another_form_are_one_line(tmp_path: Path) -> None:
    opened = trained(tmp_path)
    model = TrainedModel(opened.card, opened.task, Middle())
    with pytest.raises(ConfigError, match=r"^the model's outputs have shape \(7, 1\): \(7, 10\), one number a label"):
        predict(model, [(NAMES, PIXELS, None)])


def vectors(folder: Path, **fields: object) -> TrainedModel:
    """A model of columns: the same as of pixels, without their scaling."""
    card = trained(folder, input_shape=(64,), feature_names=(), **fields)

    def inputs(raw: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(raw.astype(np.float32))

    card.task.inputs, card.task.input_shape = inputs, (64,)  # type: ignore[method-assign, assignment]
    return card


def test_a_table_is_scaled_as_the_clients_that_trained_the_model(tmp_path: Path) -> None:
    table = pandas.DataFrame(RNG.normal(60, 15, (9, 64)), columns=[f"p{k}" for k in range(64)])
    table.to_csv(tmp_path / "t.csv", index=False)
    mean, std = table.to_numpy().mean(axis=0), table.to_numpy().std(axis=0)
    logits = (table.to_numpy() - mean) / std @ WEIGHT.T + BIAS
    labels = [str(label) for label in logits.argmax(axis=1)]
    scaling = Scaling(tuple(mean.tolist()), tuple(std.tolist()))
    shared, clients = vectors(tmp_path, scale="standard"), vectors(tmp_path, scale="standard", scaling=scaling)

    def said(model: TrainedModel, scale_from: object = None) -> list[str]:
        return [
            line.label for line in predict_table(model, tmp_path / "t.csv", Columns(), scale_from=scale_from)[0].lines
        ]

    assert said(clients) == labels
    (tmp_path / "m").rename(tmp_path / "preferred-k.safetensors")
    for source in (str(tmp_path / "t.csv"), tmp_path / "preferred-k.safetensors", table):
        assert said(shared, source) == labels
    # A task that scales has its numbers standardised as well, which takes what it did away.
    scales = vectors(tmp_path, scale="standard")
    inputs = scales.task.inputs
    scales.task.inputs = lambda raw: inputs(raw) / 10 - 3  # type: ignore[method-assign, assignment, operator]
    assert said(scales, table) == labels
    write_model(tmp_path / "other.safetensors", {}, scale="standard")
    for model, source, line in (
        (shared, None, "each client standardised its table by its own training data: scale-from names"),
        (vectors(tmp_path), str(tmp_path / "t.csv"), "scale-from is of a model whose clients standardised"),
        (shared, str(tmp_path / "other.safetensors"), "it is no model of a client that standardised its table"),
        (shared, str(tmp_path / "none.csv"), "none.csv"),
    ):
        with pytest.raises(ConfigError, match=line):
            said(model, source)


def test_a_clients_model_of_a_table_takes_its_columns_as_they_are_in_onnx_too(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    scaling = Scaling(tuple(range(64)), tuple(range(1, 65)))
    write_onnx(vectors(tmp_path, scale="standard", scaling=scaling), tmp_path / "m.onnx")
    x = RNG.normal(60, 15, (5, 64))
    (logits,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"input": x.astype(np.float32)})
    expected = (x - np.arange(64)) / np.arange(1, 65) @ WEIGHT.T + BIAS
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
