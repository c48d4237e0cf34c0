r"""MaxFL's weights under ADA-GD's projection: win clients, and keep those that are served.

A combination of our own, of "Maximizing Global Model Appeal in Federated Learning" (TMLR 2024, equation 4) and "On
the Effect of Defection in Federated Learning and How to Prevent It" (Algorithm 1). With MaxFL's weight ``q_k`` each
client has a factor, 1 where its loss is what it requires, and less the further it is from that::

    a_k = max(4 q_k, 2^-40),   q_k = s (1 - s),   s = sigmoid(F_k(w) - rho_k)

To a server that knows F_k and q_k, rho_k is no secret. ADA-GD's server needs to know of a client whether it is
predicted to leave (line 4), and its gradient: as one row of a span if so, as a term of a sum if not. A positive
factor changes neither the prediction nor the span. So the client sends its margin and its gradient, both times a_k::

    m_k = a_k (F_k(w) - c epsilon),   v_k = a_k g_k,   c = slack (the paper: 2)

    line 4      F_k(w) - eta |g_k| <= c epsilon   if and only if   m_k - eta |v_k| <= 0
    case 1      sum of a_k g_k over k not in D, made orthogonal to every g_k, k in D
    case 2      mean of a_k g_k over all: divided by the number of clients, since the server knows no sum of a_k
    case 3      all are in D: the run ends

In the local form, as in ADA-GD's, ``g_k`` is what the client's local steps take off the model, line 4 has eta = 1
over their number, and case 1 divides by the clients outside D.

A reply names neither F_k nor a_k nor rho_k; what can be computed from it is in docs/privacy.md.
The least factor, from a gap ``|F_k - rho_k|`` of 29 on, is there because ``4 q_k``, or the gradient in float32, would
else be rounded to zero: a client that sends zeros seems to leave (0 <= 0), with nothing to protect it by.
"""

from fedappeal.core.local_rule import TrainingJob
from fedappeal.core.requirement import Measured
from strategies.adagd.strategy import AdaGD, Gradient
from strategies.maxfl import appeal_weight
from strategies.rounds.strategy import Claims

MARGIN = "margin"
"""Key in a joined reply: m_k."""
LEAST_FACTOR = 2.0**-40
"""Far below any weight that matters in a sum, and far above what float32 rounds to zero."""


def appeal_factor(loss: float, requirement: float) -> float:
    """Return a client's factor a_k, in [2^-40, 1]: MaxFL's weight over its largest.

    Args:
        loss: F_k(w).
        requirement: rho_k.
    """
    return max(4.0 * appeal_weight(loss, requirement), LEAST_FACTOR)


class MaxFLAdaGD(AdaGD):
    """MaxFL's weights under ADA-GD's projection: a combination of our own; settings as ADA-GD's."""

    name = "maxfl-adagd"
    needs_losses = False
    compares_losses = True
    claimed = MARGIN
    threshold = 0.0
    """Line 4 is at 0 for margins."""

    class Settings(AdaGD.Settings):
        """The settings, ADA-GD's."""

    class LocalRule(Gradient):
        """The gradient of the client's loss, times its factor."""

        name = "weighted-gradient"

        def factor(self, job: TrainingJob) -> float:
            """Return a_k."""
            return appeal_factor(job.measured.judged.loss, job.measured.rho)

    def report(self, measured: Measured) -> Claims:
        """Return the client's margin above ``slack * precision``, times its factor."""
        factor = appeal_factor(measured.judged.loss, measured.rho)
        return {MARGIN: factor * (measured.loss - self.settings.threshold)}
