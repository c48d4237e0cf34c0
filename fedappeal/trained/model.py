"""A trained model, rebuilt from its file (the card's task with the file's values), and its predictions."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedappeal.core.places import reason
from fedappeal.core.plugins import Allowed, runs_only_with
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import CARD, array_shapes, read_safetensors, read_values, replace_file, write_safetensors
from fedappeal.system.packages import require
from fedappeal.tasks import MODELS, TASKS, is_own_model, load_task
from fedappeal.tasks.examples import Structure, map_tensors, only_tensor
from fedappeal.tasks.files.data_files import environment_data_dir
from fedappeal.tasks.share import tied_names
from fedappeal.tasks.task import Task
from fedappeal.trained.card import ModelCard, card_in, model_file, read_card

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class TrainedModel:
    """A model that is ready to predict.

    Attributes:
        card: how it was made.
        task: the task, built anew; its data need not be there.
        model: in evaluation mode, on the CPU.
    """

    card: ModelCard
    task: Task
    model: "nn.Module"


def read_task(card: ModelCard, path: Path, allow: Iterable[str] = ()) -> Task:
    """Return the task that a card names.

    Args:
        card: the card.
        path: the model's file.
        allow: packages whose code may run because the card names it; ``.``: they are looked for in the current
            folder too.

    Raises:
        ConfigError: one line: the task is not allowed, not importable, or does not take its settings.
    """
    try:
        settings, allowed = card.task_settings(), Allowed.of(allow, by_call=True)
        missing = {f"task = '{settings.task}'": TASKS.missing(settings.task, allowed)}
        if is_own_model(settings.model):
            missing[f"model = '{settings.model}'"] = MODELS.missing(settings.model, allowed)
        if parts := [part for part, packages in missing.items() if packages]:
            needed = {*chain(*missing.values())}
            raise ConfigError(f"{' and '.join(parts)} is not allowed: {runs_only_with(needed)}")
        return load_task(settings, environment_data_dir(), allowed)
    except ConfigError as error:
        reason = "; ".join(str(error).splitlines())
        raise ConfigError(f"file '{path}' is a model of task '{card.task}': {reason}") from None


def open_model(path: Path, allow: Iterable[str] = ()) -> TrainedModel:
    """Return a trained model with its card and its task.

    Args:
        path: a run's folder, or a file of a model.
        allow: as in `read_task`.

    Raises:
        ConfigError: one line: no such file, no card, a task that cannot be built, or another model's values.
    """
    file = model_file(path)
    card = read_card(file)
    task = read_task(card, file, allow)
    model = task.initial_model(task.settings.seed)
    _fill(model, card.shared, file)
    return TrainedModel(card, task, model)


def load_model(path: Path | str, model: "nn.Module | None" = None, allow: Iterable[str] = ()) -> "nn.Module":
    """Return a trained model, in evaluation mode, on the CPU.

    A file that holds a part of the model (the card's ``shared``) is laid over the task's initial model, or over the
    given one.

    Args:
        path: a run's folder, or a file of a model: ``model.safetensors``, ``preferred-RUN.safetensors``.
        model: in place of the task's, for a task that is not importable here; a copy of it is filled.
        allow: as in `read_task`.

    Raises:
        ConfigError: one line: as `open_model`.
    """
    if model is None:
        return open_model(Path(path), allow).model
    file = model_file(Path(path))
    values = read_values(file)
    shared = card_in(values, file).shared if CARD in values else "all"  # other programs write whole models
    filled = copy.deepcopy(model)
    _fill(filled, shared, file)
    return filled


def _fill(model: "nn.Module", shared: str | tuple[str, ...], file: Path) -> None:
    """Put a file's values into a model, and the model into evaluation mode.

    Names and shapes are checked by the file's header, before an array is read.

    Raises:
        ConfigError: one line: names or shapes that are not the model's.
    """
    import torch

    state, tied = model.state_dict(), tied_names(model)
    expected = {name: tuple(tensor.shape) for name, tensor in state.items() if name not in tied}
    shapes = {name: shape for name, shape in array_shapes(file).items() if name not in tied}  # others may write them
    wanted = set(expected) if shared == "all" else set(shared)
    for name in sorted(wanted | set(shapes)):
        if name not in wanted or name not in expected:
            raise ConfigError(f"file '{file}' does not hold this model: the model has no array '{name}'")
        if name not in shapes:
            raise ConfigError(f"file '{file}' does not hold this model: it lacks array '{name}'")
        if shapes[name] != expected[name]:
            raise ConfigError(
                f"file '{file}' does not hold this model: '{name}' has shape {shapes[name]}, not {expected[name]}"
            )
    arrays = read_safetensors(file)[0]
    model.load_state_dict(
        {name: torch.from_numpy(np.array(a)) for name, a in arrays.items() if name in shapes}, strict=False
    )
    model.eval()


class Prediction(NamedTuple):
    """A model's prediction for one example.

    Attributes:
        example: its name.
        label: the likeliest label, as the card calls it, or the next token; a number where labels are no classes.
        probability: the label's, by a softmax of the outputs; None for a number.
        given: the example's own label; empty where it is not known.
    """

    example: str
    label: str | float
    probability: float | None
    given: str | float


@dataclass
class Predictions:
    """Predictions of all examples.

    Attributes:
        lines: one an example, in their order.
        metrics: over all labelled examples at once, by name; without those that cannot be computed.
        labelled: number of labelled examples.
        missing: why a metric cannot be computed on them, by its name.
    """

    lines: list[Prediction] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    labelled: int = 0
    missing: dict[str, str] = field(default_factory=dict)


def inputs_of(trained: TrainedModel, raw: "NDArray[np.generic] | Structure") -> Structure:
    """Return raw inputs as the model was trained on them; tensors are so already.

    The task's own method scales them; where the task here has other constants than the card, the card does.

    Raises:
        ValueError: values out of range, or a task that does not say how to scale.
    """
    if not isinstance(raw, np.ndarray):
        return raw
    of_card, task = trained.card.normalisation, trained.task
    if of_card is None or of_card == task.normalisation:
        return task.inputs(raw)
    return of_card.inputs(raw, trained.card.task)


def predict(
    trained: TrainedModel,
    batches: "Iterable[tuple[list[str], NDArray[np.generic] | Structure, NDArray[np.generic] | Structure | None]]",
    device: "torch.device | str" = "cpu",
) -> Predictions:
    """Return a model's predictions for examples.

    Args:
        trained: the model; it is moved to the device.
        batches: names, raw inputs ``(n, *input_shape)`` or what the task made of them, and labels or None.
        device: where it predicts.

    Raises:
        ConfigError: one line: inputs that are not allowed, or outputs that are no row of numbers an example.
    """
    import torch

    from fedappeal.tasks.measuring import Evaluator
    from fedappeal.tasks.pairing import pairing_problem

    predictions, measurement, reshapes = Predictions(), Evaluator(trained.task, with_loss=False), False
    model, card = trained.model.to(device), trained.card
    with torch.no_grad():
        for names, raw, labels in batches:
            try:
                x = map_tensors(lambda t: t.to(device), inputs_of(trained, raw))
            except ValueError as error:
                raise ConfigError(f"the data are not allowed, {names[0]} to {names[-1]}: {error}") from None
            try:
                outputs = trained.task.forward(model, x)
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                why = f"the model does not take them ({reason(error)})"
                raise ConfigError(f"the data are not allowed, {names[0]} to {names[-1]}: {why}") from error
            answers = trained.task.answers(outputs, x) or _labels(outputs, len(names), card)
            true_labels: Sequence[str | float] = [""] * len(names)
            if labels is not None:
                y = torch.from_numpy(labels) if isinstance(labels, np.ndarray) else labels
                y = map_tensors(lambda t: t.to(device), y)
                if (column := only_tensor(y)) is not None:
                    if column.ndim == 1:
                        true_labels = [*map(card.label, column.tolist())] if card.num_classes else _numbers(column)
                    # A column of numbers may have been trained on as (n, 1).
                    reshapes = reshapes or (
                        not predictions.labelled and bool(pairing_problem(trained.task, outputs, y, True))
                    )
                    y = column.view(outputs.shape) if reshapes else y
                predictions.labelled += len(names)
                measurement.add(outputs, y)
            lines = zip(names, answers, true_labels, strict=True)
            predictions.lines += [Prediction(name, label, p, truth) for name, (label, p), truth in lines]
    if predictions.labelled:
        predictions.metrics, predictions.missing = measurement.metrics(), measurement.problems
    return predictions


def _numbers(values: "torch.Tensor") -> list[float]:
    """Return numbers as they are; those of float32 as the shortest that round to them."""
    import torch

    if values.dtype != torch.float32:
        return (values.double() if values.is_floating_point() else values).flatten().tolist()
    return [float(str(value)) for value in values.cpu().numpy().flatten()]


def _labels(outputs: object, examples: int, card: ModelCard) -> Sequence[tuple[str | float, float | None]]:
    """Return a label with its probability for each example, or a number.

    Raises:
        ConfigError: one line: outputs of another form.
    """
    import torch

    num_classes = card.num_classes
    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if isinstance(outputs, torch.Tensor) and num_classes and shape == (examples, num_classes):
        probabilities, labels = outputs.cpu().double().softmax(dim=1).max(dim=1)
        return list(zip(map(card.label, labels.tolist()), probabilities.tolist(), strict=True))
    if isinstance(outputs, torch.Tensor) and not num_classes and outputs.numel() == examples:
        return [(value, None) for value in _numbers(outputs)]
    wanted = f"({examples}, {num_classes}), one number a label" if num_classes else f"({examples},), one number"
    raise ConfigError(f"the model's outputs have shape {shape}: {wanted}, is needed to predict; load_model gives it")


INPUT, OUTPUT, BATCH = "input", "output", "batch"
"""Names in an ONNX model: its input, its output, and the axis that counts the examples."""


def check_onnx() -> None:
    """Check that the writer of ONNX is installed.

    Raises:
        ConfigError: one line: a missing package.
    """
    require("to = 'onnx' needs {}", "export", "onnx", "onnxscript")


def write_plain(trained: TrainedModel, path: Path) -> None:
    """Write the whole model as safetensors, its card's fields as texts in the metadata."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in trained.model.state_dict().items()}
    card = trained.card.model_copy(update={"shared": "all"})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, arrays, {CARD: card.to_json()}, texts={**card.texts(), "format": "pt"})


def write_onnx(trained: TrainedModel, path: Path) -> None:
    """Write the model as ONNX: one input ``(batch, *input_shape)``, normalised as the card says.

    The number of examples is free. The card's fields are in the model's ``metadata_props``.

    Raises:
        ConfigError: one line: packages that are missing, or a model that cannot be exported.
    """
    check_onnx()
    card = trained.card
    if not card.input_shape:
        raise ConfigError(
            f"to = 'onnx' is not allowed for task '{card.task}': it names no input-shape (a single tensor); "
            f"--to safetensors takes any model"
        )
    content = _onnx(trained)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def _onnx(trained: TrainedModel) -> bytes:
    import torch

    card = trained.card
    dtype = vars(torch).get(card.input_dtype)  # getattr would import what a card names
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"input-dtype = '{card.input_dtype}' of the card is no dtype of torch's")
    example = torch.zeros((2, *card.input_shape), dtype=dtype)  # of one example the exporter makes a constant
    try:
        program = torch.onnx.export(
            _as_module(trained),
            (example,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim(BATCH)},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        model = program.model_proto
        for key, value in {**card.texts(), CARD: card.to_json()}.items():
            model.metadata_props.add(key=key, value=value)
        return bytes(model.SerializeToString())
    except Exception as error:  # the exporter fails in ways of its own, over many lines
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the model of task '{card.task}' cannot be exported: {reason}") from error


def _as_module(trained: TrainedModel) -> "nn.Module":
    """Return a module that calls the model as its task does.

    A client's takes a table's columns as they are.
    """
    import torch

    scaling = trained.card.scaling

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = trained.model

        def forward(self, x: torch.Tensor) -> Any:
            if scaling is not None:
                x = (x - x.new_tensor(scaling.mean)) / x.new_tensor(scaling.std)
            return trained.task.forward(self.model, x)

    return Called().eval()
