"""Which tasks have clients standardise their own tables, and how a client's are."""

import numpy as np

from fedappeal.core.plugins import is_ours
from fedappeal.data.scaling import Scaling
from fedappeal.tasks.examples import ClientData, Split, only_tensor
from fedappeal.tasks.task import Task

AUTO, STANDARD = "auto", "standard"


def takes_as_is(task: Task) -> bool:
    """Whether a task takes a table's numbers as they are: then nothing has scaled them."""
    import torch

    if len(task.input_shape) != 1:
        return False
    probe = np.linspace(0.0, 1.0, 2 * task.input_shape[0]).reshape(2, -1) * 100
    try:
        x = only_tensor(task.inputs(probe))
    except Exception:  # a task of one's own, whose inputs may have any range
        return False
    return x is not None and x.is_floating_point() and bool(torch.equal(x.float(), torch.from_numpy(probe).float()))


def standardises(task: Task) -> bool:
    """Whether clients standardise their own tables.

    As ``scale`` says; auto: where the task does not scale.
    """
    if task.settings.scale == AUTO:
        return not is_ours(type(task)) and takes_as_is(task)
    return bool(task.settings.scale == STANDARD)


def standardised_data(data: ClientData) -> ClientData:
    """Return a client's data with its columns standardised by its training data, in float32.

    Args:
        data: inputs of shape ``(n, k)``, float64.
    """
    import torch

    x = only_tensor(data.train.x)
    assert x is not None
    scaling = Scaling.of(x.numpy())

    def scaled(split: Split) -> Split:
        raw = only_tensor(split.x)
        assert raw is not None
        return Split(torch.from_numpy(scaling.scaled(raw.numpy())).float(), split.y)

    return ClientData(scaled(data.train), scaled(data.test), scaling=scaling)
