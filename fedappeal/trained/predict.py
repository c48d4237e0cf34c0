"""Predictions of a trained model: labels with probabilities, or values; and metrics."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import Structure, map_tensors
from fedappeal.trained.model import TrainedModel

if TYPE_CHECKING:
    import torch


class Prediction(NamedTuple):
    """What the model says of one example.

    Attributes:
        example: its name.
        label: the likeliest label, as the card calls it; where labels are no classes, the value.
        probability: the label's, by a softmax of the outputs; None where labels are no classes.
        given: the example's own label; empty where it is not known.
    """

    example: str
    label: str
    probability: float | None
    given: str


@dataclass
class Predictions:
    """Predictions of all examples.

    Attributes:
        lines: one an example, in their order.
        metrics: means over the labelled examples, by name.
        labelled: number of labelled examples.
    """

    lines: list[Prediction] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    labelled: int = 0


def inputs_of(trained: TrainedModel, raw: NDArray[np.generic]) -> Structure:
    """Return raw inputs as the model was trained on them.

    The task's own method scales them; where the task here has other constants than the card, the card does.

    Raises:
        ValueError: values out of range, or a task that does not say how to scale.
    """
    of_card, task = trained.card.normalisation, trained.task
    if of_card is None or of_card == task.normalisation:
        return task.inputs(raw)
    return of_card.inputs(raw, trained.card.task)


def predict(
    trained: TrainedModel,
    batches: "Iterable[tuple[list[str], NDArray[np.generic], NDArray[np.int64] | None]]",
    device: "torch.device | str" = "cpu",
) -> Predictions:
    """Return what a model says of examples.

    Args:
        trained: the model; it is moved to the device.
        batches: names, raw inputs ``(n, *input_shape)``, and labels ``(n,)`` or None.
        device: where it predicts.

    Raises:
        ConfigError: one line: inputs that are not allowed, or outputs that are no row of numbers an example.
    """
    import torch

    predictions, sums = Predictions(), dict[str, float]()
    model, card = trained.model.to(device), trained.card
    with torch.no_grad():
        for names, raw, labels in batches:
            try:
                x = inputs_of(trained, raw)
            except ValueError as error:
                raise ConfigError(f"the data are not allowed, {names[0]} to {names[-1]}: {error}") from None
            outputs = trained.task.forward(model, map_tensors(lambda t: t.to(device), x))
            said = _said(outputs, len(names), card.num_classes)
            if labels is not None:
                predictions.labelled += len(labels)
                measured = trained.task.metrics(outputs, torch.from_numpy(labels).to(device))
                for name, value in measured.items():
                    sums[name] = sums.get(name, 0.0) + value * len(labels)
            for row, (name, (value, probability)) in enumerate(zip(names, said, strict=True)):
                label = f"{value:g}" if probability is None else card.label(int(value))
                predictions.lines.append(
                    Prediction(name, label, probability, "" if labels is None else card.label(int(labels[row])))
                )
    predictions.metrics = {name: total / predictions.labelled for name, total in sums.items()}
    return predictions


def _said(outputs: object, examples: int, num_classes: int) -> list[tuple[float, float | None]]:
    """Return a label with its probability for each example, or a value.

    Raises:
        ConfigError: one line: outputs of another form.
    """
    import torch

    shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if isinstance(outputs, torch.Tensor) and num_classes and shape == (examples, num_classes):
        probabilities, labels = outputs.double().softmax(dim=1).max(dim=1)
        return list(zip(labels.tolist(), probabilities.tolist(), strict=True))
    if isinstance(outputs, torch.Tensor) and not num_classes and outputs.numel() == examples:
        return [(value, None) for value in outputs.flatten().tolist()]
    wanted = f"({examples}, {num_classes}), one number a label" if num_classes else f"({examples},), one number"
    raise ConfigError(f"the model's outputs have shape {shape}: {wanted}, is needed to predict; load_model gives it")
