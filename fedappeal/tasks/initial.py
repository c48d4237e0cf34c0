"""The model a run starts from, w_0, as named arrays."""

from pathlib import Path

from fedappeal.files import read_safetensors
from fedappeal.protocol.config import ConfigError
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.tasks.task import Task


def initial_arrays(task: Task, seed: int, file: str = "") -> Arrays:
    """Return w_0 by name: the file's, or the task's model for the run's seed.

    Raises:
        ConfigError: if the file does not hold this task's model.
    """
    model = {name: t.detach().cpu().numpy() for name, t in task.initial_model(seed).state_dict().items()}
    if not file:
        return model
    arrays, _ = read_safetensors(Path(file))
    given = {name: arrays[name] for name in model if name in arrays}
    if Layout.of(given) != Layout.of(model) or len(arrays) != len(model):
        raise ConfigError(
            f"initial-model = '{file}' is not allowed: it does not hold the model of task "
            f"'{task.name}' (model = {task.settings.model})"
        )
    return given
