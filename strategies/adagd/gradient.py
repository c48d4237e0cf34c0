r"""ADA-GD's local rule: the client sends the gradient of its loss, not a model.

"On the Effect of Defection in Federated Learning and How to Prevent It", Algorithm 1, line 3: ``grad F_m(w)``, with
F_m the mean loss over all training examples of the model w that was sent, in evaluation mode (no dropout), so that
loss and gradient are of the same function and server and client predict alike.

Two settings leave the theory, which knows exact gradients and one step only (the paper's experiments do too):

* ``gradient-batch`` > 0: each gradient is of that many examples;
* ``gradient-steps`` = K > 1: the client takes K local steps ``w <- w - learning-rate * g`` and sends
  ``(w_0 - w_K) / (K * learning-rate)``, the mean of the K gradients on its way.
"""

from typing import TYPE_CHECKING

import numpy as np

from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings, TrainingJob
from fedappeal.protocol import keys
from fedappeal.protocol.draws import Minibatches
from fedappeal.settings.config import ConfigError
from strategies.rounds.round import Model

if TYPE_CHECKING:
    from fedappeal.protocol.packing import Arrays


class Gradient(LocalRule):
    """The gradient of the client's loss, in place of a model."""

    knows_momentum = False
    knows_weight_decay = False
    sends_model = False
    sends_update = True
    keeps_personal = False
    batched = True

    def gradients(self, steps: int) -> int:
        """Return ``gradient-steps``: a run's local steps are not taken."""
        return int(self.settings.gradient_steps)

    def examples(self, training: LocalTrainingSettings) -> int:
        """Return ``gradient-batch``."""
        return int(self.settings.gradient_batch)

    def factor(self, job: TrainingJob) -> float:
        """Return what the gradient is multiplied by."""
        return 1.0

    def reply(self, job: TrainingJob) -> dict[str, Model]:
        """Return the gradient under the model's parameter names, packed as the model is.

        Raises:
            ConfigError: for a model with anything but trainable parameters.
        """
        self._check_model(job)
        steps, size = self.settings.gradient_steps, self.settings.gradient_batch
        batches = Minibatches(
            job.seed, job.client_id, job.server_round, job.examples, steps if size else 0, size or 1, "gradient"
        ).rows()
        at, rate = dict(job.arrays), job.training.learning_rate
        total: Arrays = {}
        for step in range(steps):
            gradient = job.gradient(at, next(batches) if size else None)
            total = {name: np.add(total[name], g) if total else g for name, g in gradient.items()}
            if step < steps - 1:
                at = {name: at[name] - np.multiply(g, rate, dtype=g.dtype) for name, g in gradient.items()}
        if (share := self.factor(job) / steps) != 1:
            total = {name: np.multiply(t, share, dtype=t.dtype) for name, t in total.items()}
        return {keys.ARRAYS: job.pack(total)}

    def _check_model(self, job: TrainingJob) -> None:
        from torch.nn.modules.batchnorm import _BatchNorm

        batch_norm = [name for name, module in job.model.named_modules() if isinstance(module, _BatchNorm)]
        if batch_norm:
            raise ConfigError(
                f"model with BatchNorm is not allowed with local-rule = '{self.name}': {', '.join(batch_norm)} "
                "(its loss is no mean over examples)"
            )
        if others := sorted(set(job.arrays) - set(job.trainable)):
            raise ConfigError(
                f"model with {', '.join(others)} is not allowed with local-rule = '{self.name}': trainable "
                "parameters alone, each under one name (no buffers, nothing frozen or shared)"
            )
