"""Evaluation on the server: of a central test set, or by a program's own function."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from client.training.models import arrays_of, evaluate, load_arrays
from fedappeal.api.client_data import split_of
from fedappeal.protocol.packing import Arrays
from fedappeal.settings.config import ConfigError
from fedappeal.tasks.task import Task

PREFIX = "central_"
"""Begins the columns of the history that hold what the server measures."""


def central_evaluation(given: Any, task: Task, seed: int, device: torch.device) -> Callable[[int, Arrays], Any]:
    """Return what evaluates each evaluated model on the server.

    Args:
        given: a test set (``(x, y)``, a Dataset or a Split), or a callable ``(round, model) -> dict of numbers``.
        task: calls and measures the model.
        seed: of the run.
        device: where models are evaluated.

    Raises:
        ConfigError: what is neither.
    """
    model = task.initial_model(seed).to(device).eval()
    if callable(given):
        measure: Callable[[int], Any] = lambda number: given(number, model)  # noqa: E731
    else:
        try:
            split = split_of(given, "the central test set").to(device)
        except ConfigError as error:
            raise ConfigError(str(error).replace("data is", "evaluate is", 1)) from None

        def measure(number: int) -> Any:
            found = evaluate(task, model, split)
            return {"loss": found.loss, task.metric.name: found.score, **found.others}

    kept = arrays_of(model)  # what stays with the clients has its initial values

    def central(number: int, arrays: Arrays) -> dict[str, float]:
        load_arrays(model, {**kept, **arrays})
        with torch.no_grad():
            found = measure(number)
        model.eval()
        if not isinstance(found, Mapping):
            raise ConfigError(f"evaluate is not allowed: it returned {type(found).__name__}; a dict of numbers is")
        return {PREFIX + str(key).replace("-", "_"): float(value) for key, value in found.items()}

    return central
