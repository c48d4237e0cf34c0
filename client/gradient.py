r"""ADA-GD's local rule: the client sends the gradient of its loss, not a model.

"On the Effect of Defection in Federated Learning and How to Prevent It", Algorithm 1, line 3: ``grad F_m(w)``, with
F_m the mean loss over all training examples of the model w that was sent, in evaluation mode (no dropout), so that
loss and gradient are of the same function and server and client predict alike.

Two settings leave the theory, which knows exact gradients and one step only (the paper's experiments do too):

* ``gradient-batch`` > 0: each gradient is of so many examples;
* ``gradient-steps`` = K > 1: the client takes K local steps ``w <- w - learning-rate * g`` and sends
  ``(w_0 - w_K) / (K * learning-rate)``, the mean of the K gradients on its way.

Under MaxFL's weights (`strategies.maxfl_adagd`) what is sent is multiplied by the client's factor a_k.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord
from torch import nn

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, RunConfig
from fedappeal.protocol.draws import batch_indices
from strategies.maxfl_adagd import MaxFLAdaGD, appeal_factor

if TYPE_CHECKING:
    from client.participant import Participant
    from client.training import Job
    from fedappeal.protocol.packing import Arrays


def gradient(job: "Job") -> dict[str, ArrayRecord]:
    """Return the gradient under the model's parameter names, packed as the model is.

    Raises:
        ConfigError: for momentum or weight decay, and for a model with anything but trainable parameters.
    """
    participant, work = job.participant, job.work
    for key, value in (("momentum", work.momentum), ("weight-decay", work.weight_decay)):
        if value:
            raise ConfigError(f"{key} = {value:g} is not allowed with local-rule = gradient: 0")
    _check_model(participant)
    examples = len(participant.data.train)
    steps, size = work.gradient_steps, work.gradient_batch
    seed, client = participant.config.seed, participant.client_id
    batches = batch_indices(seed, client, job.server_round, examples, steps if size else 0, size or 1, "gradient")
    at = dict(job.arrays)
    total: Arrays = {}
    for step in range(steps):
        found = participant.gradient(at, batches[step] if size else None)
        total = {name: np.add(total[name], g) if total else g for name, g in found.items()}
        if step < steps - 1:
            at = {name: at[name] - np.multiply(g, work.learning_rate, dtype=g.dtype) for name, g in found.items()}
    if (share := job.factor / steps) != 1:
        total = {name: np.multiply(t, share, dtype=t.dtype) for name, t in total.items()}
    return {keys.ARRAYS: participant.layout.pack(total)}


def check_asked(config: RunConfig, told: Mapping[str, object]) -> None:
    """Refuse a TRAIN message that, in a run of `strategies.maxfl_adagd`, asks for anything but a margin.

    The loss, another threshold for the same model, or a weight or a gradient without the factor beside those with it
    would each tell the server a_k, and from it rho_k follows.

    Args:
        config: the run's settings.
        told: the config of the TRAIN message.

    Raises:
        ConfigError: names what was asked for.
    """
    asked = keys.LEAVING_LOSS in told or told.get(keys.REPORT) == keys.MARGIN
    if config.strategy != MaxFLAdaGD.name and not asked:
        return
    allowed = {keys.REPORT: keys.MARGIN, keys.LEAVING_LOSS: config.slack * config.precision, keys.TUNING_STEPS: None}
    for key, value in allowed.items():
        if (theirs := told.get(key)) != value:
            raise ConfigError(f"{key} = {theirs} is not allowed in this run: {value}")


def margin(config: RunConfig, loss: float, requirement: float) -> float:
    """Return what a client reports in place of its loss where MaxFL's factor is in its gradient.

    Args:
        config: the run's settings.
        loss: F_k(w).
        requirement: rho_k.

    Returns:
        ``a_k (F_k - slack * epsilon)``.
    """
    return appeal_factor(loss, requirement) * (loss - config.slack * config.precision)


def _check_model(participant: "Participant") -> None:
    model, trainable, names = participant.model, participant.trainable, participant.layout.names
    batch_norm = [n for n, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if batch_norm:
        raise ConfigError(
            f"model with BatchNorm is not allowed with local-rule = gradient: {', '.join(batch_norm)} "
            "(its loss is no mean over examples)"
        )
    if others := sorted(set(names) - set(trainable)):
        raise ConfigError(
            f"model with {', '.join(others)} is not allowed with local-rule = gradient: trainable parameters alone, "
            "each under one name (no buffers, nothing frozen or shared)"
        )
