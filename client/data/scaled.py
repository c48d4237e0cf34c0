"""A client's raw inputs, as the task's model takes them."""

import numpy as np
from numpy.typing import NDArray

from client.data.unfit import Unfit
from fedappeal.protocol.keys import DataProblem
from fedappeal.tasks.examples import Structure
from fedappeal.tasks.task import Task


def scaled(task: Task, raw: NDArray[np.generic]) -> Structure:
    """Return inputs as `Task.inputs` makes them of raw ones of the right shape.

    Args:
        task: the task.
        raw: finite numbers, one row an example.

    Raises:
        Unfit: another shape than the task's, values that are not allowed, or a task that takes no such data.
    """
    shape = task.input_shape
    if type(task).inputs is Task.inputs:
        problem = DataProblem.NOT_TAKEN
    else:
        check_shape(raw.shape, shape)
        problem = DataProblem.VALUES
    try:
        return task.inputs(raw)
    except ValueError as error:
        raise Unfit(problem, str(error)) from None
    except Exception as error:  # a task of one's own, which may fail in any way
        raise Unfit(problem, f"its inputs failed: {type(error).__name__}: {error}") from error


def check_shape(held: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Check the shape of raw inputs, which may lack the axis of a single channel.

    Args:
        held: shape of all of them.
        shape: of one of the task's inputs; empty: it may be any.

    Raises:
        Unfit: it is another.
    """
    if shape and held[1:] not in (shape, shape[1:] if _has_one_channel(shape) else shape):
        raise Unfit(DataProblem.SHAPE, f"x has shape {held}: {_wanted(shape)} is needed, n examples first")


def _has_one_channel(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] == 1


def with_channel(raw: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Return images with an axis for a single channel, which they may lack.

    Args:
        raw: shape ``(n, ...)``.
        shape: of one of the task's inputs.
    """
    return raw[:, None] if _has_one_channel(shape) and raw.shape[1:] == shape[1:] else raw


def _wanted(shape: tuple[int, ...]) -> str:
    full = f"(n, {', '.join(map(str, shape))})"
    return f"{full} or {full.replace('n, 1, ', 'n, ', 1)}" if _has_one_channel(shape) else full
