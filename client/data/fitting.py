"""Whether a device's own data fit what a federation runs, looked at before it joins."""

from collections.abc import Sequence

from client.data.own_data import load_own_data
from client.data.refused import OwnDataError
from fedappeal.data.columns import Columns
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import TASKS, load_task


def fitting_tasks(data: str, columns: Columns, tasks: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Return the number of examples for each task that the data fit, and a reason for each other one.

    Args:
        data: the owner's.
        columns: of a table.
        tasks: names, as a server says them; those of foreign code are left out, and tried when a run asks.
    """
    fits, reasons = {}, []
    for name in dict.fromkeys(tasks):
        if name not in TASKS.built_in:
            continue
        try:
            task = load_task(RunConfig.parse({"task": name}).task_settings())
        except (ConfigError, ImportError):  # settings of the run's, or a library, are missing here
            continue
        try:
            own = load_own_data(task, data, "", columns)
        except OwnDataError as error:
            reasons.append(f"{name}: {error}")
        else:
            fits[name] = len(own.train) + len(own.test)
    return fits, reasons
