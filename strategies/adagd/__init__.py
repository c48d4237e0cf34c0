"""ADA-GD: gradient descent that keeps clients from leaving.

`algorithm` is the mathematics (with `strategies.projection`); `strategy` is the server's side, what clients report,
their local rule, and the policy of rational agents.
"""

from strategies.adagd.algorithm import AdaGDStep, Gathered, step, theorem_step_size
from strategies.adagd.strategy import AdaGD

__all__ = ["AdaGD", "AdaGDStep", "Gathered", "step", "theorem_step_size"]
