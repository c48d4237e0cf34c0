"""ADA-GD: gradient descent that keeps clients from leaving.

`algorithm` is the mathematics, `projection` the orthogonal projection, `strategy` the server's side and what clients
report, `gradient` their local rule, `defect` the policy of its rational agents.
"""

from strategies.adagd.algorithm import AdaGDStep, Gathered, step, theorem_step_size
from strategies.adagd.strategy import AdaGD

__all__ = ["AdaGD", "AdaGDStep", "Gathered", "step", "theorem_step_size"]
