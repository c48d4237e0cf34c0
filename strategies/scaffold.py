r"""SCAFFOLD: control variates take the clients' drift out of their local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning".
ICML 2020, Algorithm 1. Each client i keeps a control variate c_i, an estimate of its own gradient, and the server the
mean c of all of them; both start at zero. Clients in S descend on ``g_i(y_i) - c_i + c`` from x and send y_i and the
change of c_i (`client.control`); then (equation 5)::

    x <- x + eta_g mean_{i in S} (y_i - x)
    c <- c + |S|/N mean_{i in S} (c_i^+ - c_i)

The mean over S is unweighted. The second line says that c is the mean of c_i over all N clients, and that is what is
kept: the sum of all changes, divided by N when it is sent, so that it stays the mean while clients arrive (with
c_i = 0). N is the number of seen clients that were ever enrolled.

c is the mean only while both sides agree on every c_i. Clients are therefore told which of their rounds the server
added last: the change in a reply that was surplus, late or refused counts on neither side.
"""

from typing import Any, Unpack

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedappeal.protocol import keys
from fedappeal.protocol.config import ConfigError, Scalar
from fedappeal.protocol.keys import SEEN
from fedappeal.protocol.packing import view
from strategies.fold import Refused, WeightedSum, finite
from strategies.members import Member
from strategies.replies import TrainReply
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy

_SUM = "control-sum"
_TAKEN = "control-taken"


def mean_control(total: ArrayRecord, clients: int) -> ArrayRecord:
    """Return c, the mean of all control variates, from their sum; ``clients`` is N, at least 1."""
    sums: dict[str, NDArray[Any]] = {name: view(array) for name, array in total.items()}
    return ArrayRecord({name: Array(np.asarray(array / clients, array.dtype)) for name, array in sums.items()})


class Scaffold(VolunteerStrategy):
    """SCAFFOLD's server.

    Args:
        server_lr: eta_g, more than 0.
        shared: settings that all strategies share.

    Raises:
        ConfigError: for a setting that is not allowed.
    """

    local_rule = "scaffold"
    reply_records = (keys.CONTROL_DELTA,)

    def __init__(self, *, server_lr: float = 1.0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        if not server_lr > 0:
            raise ConfigError(f"server-lr = {server_lr} is not allowed: more than 0")
        self.server_lr = server_lr
        self._sum: ArrayRecord | None = None
        self._taken: dict[str, int] = {}
        self._control = ArrayRecord()
        self._changes: WeightedSum | None = None
        self._folded: list[str] = []

    def gather(self, arrays: ArrayRecord) -> None:
        """Begin a round: the model and the changes of the control variates are summed side by side."""
        super().gather(arrays)
        if self._sum is None:
            self._sum = ArrayRecord({name: Array(np.zeros_like(view(a))) for name, a in arrays.items()})
        self._changes, self._folded = WeightedSum(self._sum), []
        clients = {*self.members.of_role(SEEN), *self._taken}  # one that has gone still counts in the sum
        self._control = mean_control(self._sum, max(1, len(clients)))

    def train_records(self) -> dict[str, ArrayRecord]:
        """Send c."""
        return {keys.CONTROL: self._control}

    def client_settings(self, member: Member) -> dict[str, Scalar]:
        """Tell a client which of its rounds c holds."""
        return {keys.CONTROL_ROUND: self._taken.get(member.client_id, 0)}

    def accept(self, member: Member, reply: TrainReply) -> None:
        """Take in a local model and the change of its client's control variate, both or neither.

        Raises:
            Refused: if one of them has another layout or a value that is not finite.
        """
        assert self._changes is not None
        change = reply.records[keys.CONTROL_DELTA]
        try:
            checked = self._changes.check(change)
        except Refused as error:
            raise type(error)(f"{keys.CONTROL_DELTA}: {error}") from None
        super().accept(member, reply)
        self._changes.add_checked(checked, 1.0)
        self._folded.append(member.client_id)

    def weight(self, reply: TrainReply) -> float:
        """Return 1: the mean is unweighted."""
        return 1.0

    def conclude(self) -> tuple[ArrayRecord | None, dict[str, float]]:
        """Return ``x + eta_g mean (y_i - x)``, and keep the sum of all c_i; both or neither."""
        models, changes = self._fold, self._changes
        self._fold = self._changes = None
        if models is None or changes is None or not models.count:
            return None, {}
        arrays = models.combine(keep=1.0 - self.server_lr, scale=self.server_lr / models.count)
        total = changes.combine(keep=1.0, scale=1.0)
        if not (finite(arrays) and finite(total)):
            return None, {"not_finite": 1.0}
        self._sum = total
        self._taken |= dict.fromkeys(self._folded, self.record.server_round)
        return arrays, {}

    def state(self) -> RecordDict:
        """Return what all strategies carry, the sum of the control variates, and which rounds it holds."""
        state = super().state()
        state[_TAKEN] = ConfigRecord({"clients": list(self._taken), "rounds": list(self._taken.values())})
        if self._sum is not None:
            state[_SUM] = self._sum
        return state

    def restore(self, state: RecordDict) -> None:
        """Take up what `state` returned."""
        super().restore(state)
        taken = state.config_records[_TAKEN]
        self._taken = dict(zip(taken["clients"], taken["rounds"], strict=True))  # type: ignore[arg-type, misc]
        self._sum = state.array_records.get(_SUM)
