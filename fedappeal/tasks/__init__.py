"""What is learned: the registry of tasks.

A task is chosen by name (`TASKS`), or as ``package.module:Name`` of one's own: a class derived from
`fedappeal.tasks.task.Task`, or any callable ``(settings, data_dir) -> Task``. The tasks that come with fedappeal are
listed and checked without torch.
"""

from functools import partial
from pathlib import Path
from typing import Any, cast

from fedappeal.core.faults import check_class, make_checked
from fedappeal.core.places import reason, with_place
from fedappeal.core.plugins import ALL, Allowed, Registry
from fedappeal.core.registry import BUILT_IN
from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.flower_app import FlowerApp, is_client_app
from fedappeal.tasks.task import Task

__all__ = ["LIBRARIES", "MODELS", "TASKS", "is_own_model", "load_task"]

TASKS: Registry[Task] = Registry(
    kind="task",
    group="fedappeal.tasks",
    base="fedappeal.tasks.task:Task",
    built_in=BUILT_IN["task"],
    places=("fedappeal.hf", "fedappeal.reproductions.adagd.task"),
    instance=is_client_app,
)

MODELS: Registry[Any] = Registry(
    kind="model",
    group="fedappeal.models",
    base="torch.nn:Module",
    built_in={name: f"fedappeal.tasks.models:{name}" for name in ("mlp", "logistic", "cnn")},
    also=", torchvision:NAME, transformers:NAME",
)
LIBRARIES: Registry[Any] = Registry("model", "", "torch.nn:Module", BUILT_IN["library"])
"""By library: what makes its models of a name."""


def is_own_model(name: str) -> bool:
    """Whether a model is the author's own, whose package an owner must allow.

    Neither fedappeal's nor a library's.
    """
    return name not in ("auto", *MODELS.built_in) and name.partition(":")[0] not in LIBRARIES.built_in


def load_task(settings: TaskSettings, data_dir: Path | str | None = None, allowed: Allowed = ALL) -> Task:
    """Return the task; its data is read when the first client's data is asked for.

    Args:
        settings: the task's settings.
        data_dir: folder of the data set, where the task reads one; empty: the default.
        allowed: packages that may be imported for a task that is not fedappeal's.

    Raises:
        ConfigError: one line: an unknown task or own setting, a partition of another kind, or one's own task is not
            allowed, failed or returned another type; or the model's package is not allowed.
    """
    name, folder = settings.task, Path(data_dir) if data_dir else None
    model = MODELS.maker(settings.model, allowed) if is_own_model(settings.model) else None
    build = TASKS.maker(name, allowed)
    if is_client_app(build):
        if model is None:
            raise ConfigError(f"model = '{settings.model}' is not allowed with a Flower app: package.module:initial")
        return FlowerApp(settings, folder, cast(Any, build), model)
    make = partial(build, settings, folder)
    if isinstance(build, type) and issubclass(build, Task):
        check_class(build)
        return cast(Task, make_checked(build, make, f"task = {name!r}"))
    try:
        task = make()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(with_place(f"task = {name!r} failed: {reason(error)}", build)) from error
    if not isinstance(task, Task):
        raise ConfigError(
            f"task = {name!r} is not allowed: it returned {type(task).__name__}, not a fedappeal.tasks.task.Task"
        )
    return task
