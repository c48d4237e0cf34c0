"""The model a run starts from, w_0, as named arrays."""

from pathlib import Path

from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import read_safetensors
from fedappeal.tasks.share import names_of, parts_of, share_of
from fedappeal.tasks.task import Task


def initial_arrays(task: Task, seed: int, file: str = "") -> Arrays:
    """Return what travels of w_0, by name: of a file, or of the task's model.

    Args:
        task: the run's task; says what travels.
        seed: the run's.
        file: holds the whole model, or what travels of it; empty: none.

    Raises:
        ConfigError: if the file does not hold this task's model.
    """
    model = task.initial_model(seed)
    shared = parts_of(model, share_of(task)).shared
    held = model.state_dict()
    whole = {name: held[name].detach().cpu().numpy() for name in names_of(model)}
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
