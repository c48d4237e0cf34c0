"""The check that a task's model, data, loss and metrics fit: one step on client 0's first examples."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from fedappeal.core.places import reason
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.examples import ClientData, Split, Structure, form_text, tensors_of
from fedappeal.tasks.examples import bytes_of as values_of
from fedappeal.tasks.measuring import Evaluator, batches, bytes_of, check_bytes, rowless
from fedappeal.tasks.models import seeded
from fedappeal.tasks.pairing import check_pairs
from fedappeal.tasks.task import Task

EXAMPLES = 8


def check_fit(task: Task, seed: int, most_examples: int = 0) -> None:
    """Train one step of client 0's on a copy of w_0, and evaluate it.

    Args:
        task: the task.
        seed: of w_0.
        most_examples: of a split of any client; 0: that of client 0.

    Raises:
        ConfigError: one line: what failed, with the forms of inputs, outputs and labels.
    """
    doing, forms = "initial_model", ""
    try:
        model = task.initial_model(seed)
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError("model is not allowed: it has no trainable parameter")
        doing = "load"
        data = task.load(0)
        batch, given = first_examples(data), first_examples(data)
        forms = f"x is {form_text(batch.x)} an example"
        doing = "calling the model"
        with warnings.catch_warnings(), seeded(seed):  # dropout draws: the generator is put back
            # Shapes that torch combines each with each are never meant.
            warnings.filterwarnings("error", message="Using a target size")
            outputs = task.forward(model.train(), batch.x)
            forms += f", y is {form_text(batch.y)}, outputs are {_form(outputs)}"
            _check_classes(task, outputs)
            doing = "the loss"
            loss = task.loss(outputs, batch.y)
            _check_loss(loss)
            if any(labels._version for _, labels in tensors_of(batch.y)):
                raise ConfigError("loss is not allowed: it changes the labels in place: in a copy it may (y.clone())")
            if not task.is_plain():
                check_pairs(task, outputs, batch.y)
            doing = "the gradient"
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                doing = "calling the model in eval mode"
                outputs = task.forward(model.eval(), given.x)
                doing = "calling the model with one example"
                if _values(given.x) != _values(first_examples(data).x):
                    raise ConfigError(
                        "model is not allowed: it changes its inputs in place: in a copy it may (x.clone())"
                    )
                one = task.forward(model, first_examples(data, 1).x)
            if _dimensions(one, 1) != _dimensions(outputs, len(batch)):
                raise ConfigError(
                    f"model is not allowed: in eval mode its outputs are {_form(one)} with one example, and "
                    f"{_form(outputs)} with {len(batch)} (x is {form_text(batch.x)} an example)"
                )
            doing = "the metrics"
            measurement, most = Evaluator(task), most_examples or max(data.counts)
            in_pieces = measurement.keeps and len(batch) > 1 and most > task.evaluation_batch
            if in_pieces and (line := rowless(one, outputs)):
                raise ConfigError(
                    f"model is not allowed: {line}; those of more than {task.evaluation_batch} examples are joined "
                    "from pieces: tensors with a row an example are"
                )
            if measurement.keeps:
                check_bytes(bytes_of(outputs) / len(batch) * most)
            if line := _uncomputable(task, model, measurement, outputs, batch):
                raise ValueError(line)
    except ConfigError:
        raise
    except Exception as error:
        whose = f"model, data and loss do not fit: {doing}" if forms else f"{doing} of the task"
        raise ConfigError(f"{whose} failed: {reason(error)}{forms and f' ({forms})'}") from error


def first_examples(data: ClientData, count: int = EXAMPLES) -> Split:
    """Return copies of a client's first examples: what is tried may change them."""
    return data.train.take(torch.arange(min(count, len(data.train))))


def _values(structure: Structure) -> list[bytes]:
    return [bytes(values_of(tensor)) for _, tensor in tensors_of(structure)]


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.ndim:
        form = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(f"loss is not allowed: it returned {form}; the mean over the examples, a scalar tensor, is")
    if not loss.requires_grad:
        raise ConfigError("loss is not allowed: its result does not depend on the model's parameters")
    if not bool(torch.isfinite(loss)):
        raise ConfigError(f"loss is not allowed: of the initial model it is {float(loss.detach())}")


@torch.no_grad()
def _uncomputable(task: Task, model: nn.Module, measurement: Evaluator, outputs: Any, batch: Split) -> str:
    """Return a metric that neither these examples nor any client's test data allow."""
    measurement.add(outputs, batch.y)
    measurement.metrics()
    problems, client = measurement.problems, 0
    while problems and client < task.settings.clients:
        measurement = Evaluator(task, with_loss=False)
        for piece in batches(task, task.load(client).test):
            measurement.add(task.forward(model, piece.x), piece.y)
        measurement.metrics()
        problems = {name: why for name, why in problems.items() if name in measurement.problems}
        client += 1
    return next((f"'{name}' can be computed on the data of no client: {why}" for name, why in problems.items()), "")


def _check_classes(task: Task, outputs: object) -> None:
    classes = task.num_classes
    if not (classes and isinstance(outputs, Tensor) and outputs.ndim == 2):
        return
    counted = task.classes_are_declared and type(task).loss is Task.loss  # a loss of one's own may need more
    more = counted and outputs.shape[1] > classes
    if more or outputs.shape[1] < classes:
        labels = f"labels are 0 to {classes - 1}"
        if len(names := task.class_names) == classes:
            labels = f"classes have {classes} names, {names[0]!r} to {names[-1]!r}"
        raise ConfigError(f"model is not allowed: it has {outputs.shape[1]} outputs, the {labels}")


def _dimensions(outputs: Any, examples: int) -> list[tuple[str, int, bool]]:
    """Return each tensor's path, dimensions, and whether a lone one has example rows.

    A row an example.
    """
    tensors = [(path, tensor) for path, tensor in tensors_of(outputs) if isinstance(tensor, Tensor)]
    return [(path, tensor.ndim, bool(path) or tensor.shape[:1] == (examples,)) for path, tensor in tensors]


def _form(outputs: object) -> str:
    try:
        return form_text(outputs)  # type: ignore[arg-type]
    except AttributeError:
        return type(outputs).__name__
