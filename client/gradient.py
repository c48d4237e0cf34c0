r"""ADA-GD's local rule: the client sends the gradient of its loss, not a model.

"On the Effect of Defection in Federated Learning and How to Prevent It", Algorithm 1, line 3: ``grad F_m(w)``, with
F_m the mean loss over all training examples of the model w that was sent, in evaluation mode (no dropout), so that
loss and gradient are of the same function and server and client predict alike.

Two settings leave the theory, which knows exact gradients and one step only (the paper's experiments do too):

* ``gradient-batch`` > 0: each gradient is of so many examples;
* ``gradient-steps`` = K > 1: the client takes K local steps ``w <- w - learning-rate * g`` and sends
  ``(w_0 - w_K) / (K * learning-rate)``, the mean of the K gradients on its way.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from client.models import EVALUATION_BATCH
from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError
from fedappeal.protocol.draws import batch_indices
from fedappeal.tasks.task import Split, Task

if TYPE_CHECKING:
    from client.training import Job


def mean_gradient(task: Task, model: nn.Module, data: Split) -> list[Tensor]:
    """Return the gradient of a model's mean loss on a data set in evaluation mode, one tensor a trainable parameter.

    It goes through the data as `client.models.evaluate` does, so that memory stays bounded.
    """
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    total: tuple[Tensor, ...] | None = None
    for start in range(0, len(data), EVALUATION_BATCH):
        x, y = data.x[start : start + EVALUATION_BATCH], data.y[start : start + EVALUATION_BATCH]
        loss = task.loss(model(x), y, reduction="sum")
        part = torch.autograd.grad(loss, parameters, materialize_grads=True)
        total = part if total is None else torch._foreach_add(total, part)
    assert total is not None
    return list(torch._foreach_div(total, float(len(data))))


def gradient(job: "Job") -> dict[str, ArrayRecord]:
    """Return the gradient under the model's parameter names, packed as the model is.

    Raises:
        ConfigError: for momentum or weight decay, and for a model with anything but trainable parameters.
    """
    participant, work = job.participant, job.work
    for key, value in (("momentum", work.momentum), ("weight-decay", work.weight_decay)):
        if value:
            raise ConfigError(f"{key} = {value:g} is not allowed with local-rule = gradient: 0")
    model, data = participant.holding(job.arrays), participant.data.train
    _check_model(model, participant.trainable, participant.layout.names)
    steps, size = work.gradient_steps, work.gradient_batch
    seed, client = participant.config.seed, participant.client_id
    batches = batch_indices(seed, client, job.server_round, len(data), steps if size else 0, size or 1, "gradient")
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for step in range(steps):
        batch = torch.from_numpy(batches[step]).to(data.x.device) if size else None
        found = mean_gradient(participant.task, model, data if batch is None else Split(data.x[batch], data.y[batch]))
        torch._foreach_add_(total, found)
        if step < steps - 1:
            with torch.no_grad():
                torch._foreach_add_(parameters, found, alpha=-work.learning_rate)
    if steps > 1:
        torch._foreach_div_(total, float(steps))
    arrays = {name: t.cpu().numpy() for name, t in zip(participant.trainable, total, strict=True)}
    return {keys.ARRAYS: participant.layout.pack(arrays)}


def _check_model(model: nn.Module, trainable: Sequence[str], names: Sequence[str]) -> None:
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
