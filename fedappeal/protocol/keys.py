"""The names on the wire: message keys, decisions, and the records of a message.

Every name that both sides must agree on is spelled here and nowhere else.
"""

from enum import IntEnum

ARRAYS = "arrays"
"""ArrayRecord: the global model (down), the locally trained model or the gradient (up)."""

CONFIG = "config"
"""ConfigRecord of an instruction: everything a client is told besides the model."""

METRICS = "metrics"
"""MetricRecord of a reply: everything a client tells about itself."""

INFO = "info"
"""ConfigRecord of a roll-call reply: who the client is (strings, which a MetricRecord cannot hold)."""

# -- config, down ------------------------------------------------------------------------------------
SERVER_ROUND = "server-round"
RUN_KEY = "run-key"
LAYOUT = "layout"
LOCAL_RULE = "local-rule"
MANDATORY = "mandatory"
SPLIT = "split"
TUNING_STEPS = "tuning-steps"
"""Fine-tuning steps before a client judges the model; in a TRAIN it asks for `appeal-weight`."""
REPORT = "report"
"""What a joined reply to TRAIN reports besides, by commas: `loss` (of the model sent), `margin`, `priority`,
`satisfied`."""
FINAL = "final"
"""1 on the EVALUATE that ends a run: each client then keeps the model it prefers."""
NEEDS_LOSS = "needs-loss"
"""1 in the roll call of a strategy that cannot do without losses: a client that reports none declines."""
GLOBAL_LOSS = "global-loss"
"""F of the priority clients (FedALIGN)."""
EPSILON = "epsilon"
MATCH_ON = "match-on"
"""What FedALIGN compares: `loss`, or `error` (1 - accuracy)."""
LEAVING_LOSS = "leaving-loss"
"""The predicted loss at which ADA-GD takes a client for leaving; in a TRAIN it asks for the gradient times `a_k`."""
ADAPTATION_STEPS = "adaptation-steps"
"""Steps of PerFedAvg's adaptation before a second evaluation, reported as `adapted-loss` and `adapted-accuracy`."""
CONTROL = "control"
"""ArrayRecord: SCAFFOLD's server control variate c (down)."""
CONTROL_ROUND = "control-round"
"""The last round whose `control-delta` of this client went into c; 0: none did."""
CONTROL_DELTA = "control-delta"
"""ArrayRecord: the change of a client's control variate c_k (up)."""

# -- metrics, up -------------------------------------------------------------------------------------
NUM_EXAMPLES = "num-examples"
DECISION = "decision"
LOSS = "loss"
ACCURACY = "accuracy"
APPEALED = "appealed"
APPEALED_TRAIN = "appealed-train"
TRAIN_LOSS = "train-loss"
"""The loss on the training data, at evaluation; only where the run asks for it: with q_k it gives rho_k away."""
PREFERRED_ACCURACY = "preferred-accuracy"
APPEAL_WEIGHT = "appeal-weight"
SATISFIED = "satisfied"
"""Whether the training loss of the model that was sent meets the client's requirement (MW-Fed)."""
MARGIN = "margin"
"""`a_k` times what the loss of the model that was sent is above `leaving-loss` (ADA-GD under MaxFL's weights)."""
ADAPTED_LOSS = "adapted-loss"
ADAPTED_ACCURACY = "adapted-accuracy"

# -- info, up (roll call) ----------------------------------------------------------------------------
CLIENT_ID = "client-id"
ROLE = "role"
PRIORITY = "priority"
"""Roll call (up): the owner asks for it. TRAIN (down): the server grants it. TRAIN (up): as granted."""
LEFT_RUN = "left-run"
"""Roll call (up): 1 where the client has left this run for good; one whose owner has reset that has not."""
TASK = "task"
FINGERPRINT = "fingerprint"
VERSION = "version"

SEEN = "seen"
"""Role of a client that trains and evaluates."""
UNSEEN = "unseen"
"""Role of a client that evaluates and is never asked to train."""

TRAIN_SPLIT = "train"
TEST_SPLIT = "test"


class Decision(IntEnum):
    """What a client decided when it was asked to train."""

    JOINED = 1
    SAT_OUT = 0
    LEFT = -1
