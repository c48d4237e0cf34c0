"""ADA-GD: gradient descent that keeps clients from leaving.

`algorithm` is the mathematics (with `strategies.projection`), `strategy` the server's side, what clients report and
the policy of rational agents, `gradient` the clients' local rule.
"""

from strategies.adagd.algorithm import AdaGDStep, Gathered, step, theorem_step_size
from strategies.adagd.strategy import AdaGD

__all__ = ["AdaGD", "AdaGDStep", "Gathered", "step", "theorem_step_size"]
