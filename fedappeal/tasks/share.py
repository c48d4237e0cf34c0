"""What of a model travels: all, what is trained, or what patterns name; and what travels of w_0."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import read_safetensors
from fedappeal.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


AUTO, ALL, TRAINABLE, NONE = "auto", "all", "trainable", "none"
_SHOWN = 6
"""Most names that an error lists."""


@dataclass(frozen=True)
class Parts:
    """A model's arrays by owner, each tuple in the model's order.

    Attributes:
        shared: names of the arrays that travel between server and clients.
        personal: names of the arrays that each client trains or keeps up to date for itself.
        fixed: names of the parameters that are never trained and not sent: all have them from the task.
        personal_trained: the personal ones that are trained; the others are buffers.
    """

    shared: tuple[str, ...]
    personal: tuple[str, ...]
    fixed: tuple[str, ...]
    personal_trained: tuple[str, ...]


def share_of(task: "Task") -> str:
    """Return the shared part of a task's model: the run's setting, or the task's."""
    return task.share if task.settings.share == AUTO else task.settings.share


def tied_names(model: "nn.Module") -> set[str]:
    """Return the further names of tied parameters.

    For example of an output layer tied to the embeddings.
    """
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - {
        name for name, _ in model.named_parameters()
    }


def names_of(model: "nn.Module") -> list[str]:
    """Return all parameters' and buffers' names, in order.

    Tied parameters have their first.
    """
    tied = tied_names(model)
    return [name for name in model.state_dict() if name not in tied]


def parts_of(model: "nn.Module", share: str) -> Parts:
    """Return the arrays of a model that travel, and those that stay.

    Args:
        model: the model.
        share: ``all``; ``trainable``: the parameters that require a gradient; or names as patterns (``*`` and ``?``),
            separated by commas. A pattern behind ``!`` takes away; where all do, they take away from all. ``none``:
            the control of a simulation, in which nothing travels.

    Raises:
        ConfigError: a pattern without a match, or nothing that travels.
    """
    names = names_of(model)
    trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if share in (ALL, NONE):
        shared = set(names) if share == ALL else set()
    elif share == TRAINABLE:
        shared = trained & set(names)
    else:
        shared = _matching_names(share, names)
    if not shared and share != NONE:
        raise ConfigError(f"share = '{share}' is not allowed: no array of the model would travel")
    staying = [name for name in names if name not in shared]
    return Parts(
        tuple(name for name in names if name in shared),
        tuple(name for name in staying if name in trained or name not in parameters),
        tuple(name for name in staying if name in parameters - trained),
        tuple(name for name in staying if name in trained),
    )


def _matching_names(share: str, names: Iterable[str]) -> set[str]:
    """Return the names that patterns choose.

    Raises:
        ConfigError: an empty pattern, or one without a match.
    """
    names = list(names)
    patterns = [pattern.strip() for pattern in share.split(",")]
    chosen = set(names) if all(pattern.startswith("!") for pattern in patterns) else set()
    for pattern in patterns:
        wanted = pattern.removeprefix("!")
        matches = {name for name in names if fnmatchcase(name, wanted)}
        if not matches:
            listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            raise ConfigError(
                f"share = '{share}' is not allowed: no array of the model is called '{wanted}' ({listed}); or "
                f"{ALL}, {TRAINABLE}"
            )
        chosen = chosen - matches if pattern.startswith("!") else chosen | matches
    return chosen


def initial_arrays(task: Task, seed: int, file: str = "") -> Arrays:
    """Return the shared arrays of w_0 by name, from a file or the task's model.

    Args:
        task: the run's task; says what travels.
        seed: the run's.
        file: holds the whole model, or what travels of it; empty: none.

    Raises:
        ConfigError: if the file does not hold this task's model.
    """
    model = task.initial_model(seed)
    shared = parts_of(model, share_of(task)).shared
    state = model.state_dict()
    whole = {name: state[name].detach().cpu().numpy() for name in names_of(model)}
    if not file:
        return {name: whole[name] for name in shared}
    arrays, _ = read_safetensors(Path(file))
    matching = {name: arrays[name] for name in shared if name in arrays}
    fits = Layout.of(matching) == Layout.of({name: whole[name] for name in shared})
    if not fits or len(arrays) not in (len(whole), len(shared)):
        raise ConfigError(
            f"initial-model = '{file}' is not allowed: it does not hold the model of task "
            f"'{task.name}' (model = {task.settings.model})"
        )
    return matching
