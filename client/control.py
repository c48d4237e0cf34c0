r"""SCAFFOLD's client: a control variate c_i that lasts from round to round.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning".
ICML 2020, Algorithm 1. The client descends on ``g_i(y_i) - c_i + c`` (`client.descent.scaffold`) from the model x
that was sent; then (equation 4, option II)::

    c_i^+ = c_i - c + (x - y_i) / (K eta_l)

and sends y_i and ``c_i^+ - c_i``. All control variates start at zero. Option II is the mean of the K gradients that
were used only where each of them moved the model by eta_l: there is no momentum.

The server adds the changes up, so a change that it did not add must not count here either: a reply may be surplus,
late or refused, and a round may be run again after a restart. The client therefore remembers c_i before and after its
latest round, and TRAIN says which round of this client the server added last.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from client.state import Record, Store
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError

if TYPE_CHECKING:
    from client.training import Job

Arrays = Mapping[str, NDArray[Any]]


def control_delta(sent: Arrays, local: Arrays, control: Arrays, steps: int, learning_rate: float) -> Arrays:
    """Return ``c_i^+ - c_i`` of option II: ``(x - y_i) / (K eta_l) - c``.

    Args:
        sent: x, the model that was sent, by name.
        local: y_i, the model after local training; names as ``control``.
        control: c, the server's control variate.
        steps: K, at least 1.
        learning_rate: eta_l, more than 0.

    Returns:
        Arrays of the names, shapes and dtypes of ``control``.
    """
    scale = 1.0 / (steps * learning_rate)
    return {name: np.asarray((sent[name] - local[name]) * scale - c) for name, c in control.items()}


def control_before(store: Store, run_key: str, taken: int, like: Arrays) -> Arrays:
    """Return c_i as the server knows it.

    Args:
        store: the client's memory.
        run_key: which run.
        taken: the last round whose change the server added; 0: none, so that c_i is zero.
        like: arrays whose names, shapes and dtypes c_i has.
    """
    record = store.read(_name(run_key))
    if record is None or taken == 0:
        return {name: np.zeros_like(array) for name, array in like.items()}
    which = "after" if int(record.values["round"]) <= taken else "before"
    return {name: record.arrays[f"{which}/{name}"] for name in like}


def remember(store: Store, run_key: str, server_round: int, before: Arrays, after: Arrays) -> None:
    """Store c_i before and after a round, both or neither."""
    arrays = {f"before/{name}": array for name, array in before.items()}
    arrays |= {f"after/{name}": array for name, array in after.items()}
    store.write(_name(run_key), Record({"round": server_round}, arrays))


def _name(run_key: str) -> str:
    return f"control-{run_key}"


def controlled(job: "Job") -> dict[str, ArrayRecord]:
    """Train with the correction ``c - c_i`` and return the local model and the change of c_i.

    Only trainable parameters have a control variate; the change of every other array is zero.

    Raises:
        ConfigError: for momentum, or where there is no local step.
        ValueError: if the message carries no control variate of this model.
    """
    participant, work = job.participant, job.work
    steps = work.steps(len(participant.data.train))
    if work.momentum:
        raise ConfigError(f"momentum = {work.momentum:g} is not allowed with local-rule = scaffold: 0")
    if steps < 1:
        raise ConfigError("local-steps = 0 is not allowed with local-rule = scaffold where local-epochs = 0")
    record = job.content.get(keys.CONTROL)
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"message has no ArrayRecord '{keys.CONTROL}'")
    sent = participant.layout.unpack(record)
    control: Arrays = {name: sent[name] for name in participant.trainable}
    taken = int(job.content[keys.CONFIG].get(keys.CONTROL_ROUND, job.server_round - 1))  # type: ignore[arg-type]
    before = control_before(participant.store, job.run_key, taken, control)
    correction = [torch.from_numpy(np.asarray(c - before[n])).to(participant.device) for n, c in control.items()]
    local = participant.train(job.arrays, job.server_round, "scaffold", work, correction)
    delta = control_delta(job.arrays, local, control, steps, work.learning_rate)
    after = {name: np.asarray(before[name] + delta[name]) for name in control}
    remember(participant.store, job.run_key, job.server_round, before, after)
    change = {name: delta.get(name, np.zeros_like(array)) for name, array in job.arrays.items()}
    return {
        keys.ARRAYS: participant.layout.pack(local),
        keys.CONTROL_DELTA: participant.layout.pack(change),
    }
