"""The names on the wire: message keys, decisions, and the records of a message.

Every name that all algorithms share is spelled here; an algorithm's own keys stand in its file. docs/protocol.md says
of each its sender, type and unit.
"""

import re
from enum import IntEnum, StrEnum
from functools import lru_cache

PROTOCOL = 4
"""Version of the wire protocol. Clients of another one decline."""

ARRAYS = "arrays"
"""ArrayRecord: the global model (down), the locally trained model or the gradient (up)."""

CONFIG = "config"
"""ConfigRecord of an instruction: everything a client is told besides the model."""

METRICS = "metrics"
"""MetricRecord of a reply: everything a client tells about itself."""

INFO = "info"
"""ConfigRecord of a roll-call reply: who the client is (strings, which a MetricRecord cannot hold)."""

SAT_OUT_ERROR, LEFT_ERROR = 480, 481
"""Codes of the error replies by which a client of a strategy that knows no volunteers sits out, or has left."""


def app_config(kind: str) -> str:
    """Return the name of the roll call's ConfigRecord that tells what messages of a kind, such as TRAIN, will."""
    return f"{kind}-{CONFIG}"


APP_CONFIGS = (app_config("train"), app_config("evaluate"))
"""ConfigRecords of the roll call, for apps whose run has no configuration of ours."""

# -- config, down ------------------------------------------------------------------------------------
SERVER_ROUND = "server-round"
RUN_KEY = "run-key"
LAYOUT = "layout"
STRATEGY = "strategy"
"""The strategy's name. What a message tells about it stands under ``NAME.KEY``: its settings, values of the round."""
LOCAL_RULE = "local-rule"
MANDATORY = "mandatory"
SPLIT = "split"
TUNING_STEPS = "tuning-steps"
"""Fine-tuning steps before a client judges the model (EVALUATE)."""
FINAL = "final"
"""1 on the EVALUATE that ends a run: each client then keeps the model it prefers."""
PROTOCOL_VERSION = "protocol"
"""Roll call, both ways: the sender's `PROTOCOL`."""
PLUGINS = "plugins"
"""Roll call (down): each plug-in of the run that is not fedappeal's, a line each: kind, name, provenance."""
NONCE = "nonce"
"""Roll call (down) of a run of real nodes: what a client signs to prove whose its client-id is."""
NEEDS_LOSS = "needs-loss"
"""1 in the roll call of a strategy that cannot do without losses: a client that reports none declines."""
NEEDS_WEIGHT = "needs-weight"
"""The same of what a joined client claims besides its model."""
NEEDS_APPEAL = "needs-appeal"
"""The same of whether the model meets the client's requirement."""
NEEDS_TRAIN_SPLIT = "needs-train-split"
"""The same of answers to an EVALUATE with ``split = train``."""

# -- metrics, up -------------------------------------------------------------------------------------
NUM_EXAMPLES = "num-examples"
MOST_EXAMPLES = 10**12
"""Most examples that a client may claim: beyond it, a weight says nothing and float32 overflows."""
DECISION = "decision"
LOSS = "loss"
APPEALED = "appealed"
APPEALED_TRAIN = "appealed-train"
APPEALED_HELD_OUT = "appealed-held-out"
"""Whether the model meets the requirement on what the client holds out to judge models by."""
SERVED = "served"
"""1 where the model's value of the metric on the test data is at least the solo model's, else 0."""
APPEALS = (APPEALED, APPEALED_TRAIN, APPEALED_HELD_OUT, SERVED)
"""All that say, by 0 or 1, whether the model suits the client; an owner may keep them back."""
TRAIN_LOSS = "train-loss"
"""The training loss at evaluation, only where the run asks for it: with a weight it can give rho_k away."""
PREFERRED = "preferred-"
"""In front of the metric's name: its value for the model that the client prefers."""
ADAPTED_LOSS = "adapted-loss"
ADAPTED = "adapted-"
"""In front of the metric's name, and of ``loss``: after the strategy's local adaptation."""

# -- info, up (roll call) ----------------------------------------------------------------------------
CLIENT_ID = "client-id"
ROLE = "role"
PRIORITY = "priority"
"""Whether the owner asks to be served with priority."""
LEFT_RUN = "left-run"
"""1 where the client has left this run for good; one whose owner has reset that has not."""
TASK = "task"
FINGERPRINT = "fingerprint"
VERSION = "version"
"""The client's fedappeal version, for information."""
PUBLIC_KEY = "public-key"
"""The client's own key, where its connection's does not last: PEM, on P-256."""
SIGNATURE = "signature"
"""That key's signature of what `fedappeal.protocol.proof` says."""
DATA_REFUSED = "data-refused"
"""Instead of metrics, where the client's own data do not fit the run: a `DataProblem`."""

APPROVAL = "approval"
"""Instead of metrics, where the client's owner has not approved the run: one of the next two."""
WAITING = "waiting"
"""The owner is asked; the client comes online anew once the run is approved."""
DECLINED = "declined"
"""The owner takes approved runs alone."""

SEEN = "seen"
"""Role of a client that trains and evaluates."""
UNSEEN = "unseen"
"""Role of a client that evaluates and is never asked to train."""

TRAIN_SPLIT = "train"
TEST_SPLIT = "test"
HELD_OUT_SPLIT = "held-out"
"""What of its training data a client never trains on, to judge models by."""
HALVES = ("held-out-1", "held-out-2")
"""Its halves, of which each judges what was chosen by the other."""


class Decision(IntEnum):
    """A client's decision when asked to train."""

    JOINED = 1
    SAT_OUT = 0
    LEFT = -1

    @property
    def label(self) -> str:
        """The decision in files and metrics: ``joined``, ``sat-out`` or ``left``."""
        return self.name.lower().replace("_", "-")


_CLIENT_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
CLIENT_IDS = "1 to 64 letters, digits, '.', '_' and '-', not beginning with '.' or '-'"
"""What `is_client_id` allows, for a person."""
_LONGEST_RUN_KEY = 64
_match_run_key = lru_cache(maxsize=4)(re.compile(r"[\w.-]*", re.ASCII).fullmatch)


def is_run_key(text: str) -> bool:
    """Whether a text is a valid run key, which becomes part of file names.

    Empty where another's ServerApp sends none.
    """
    return len(text) <= _LONGEST_RUN_KEY and bool(_match_run_key(text))  # nothing longer is remembered


def is_client_id(text: str) -> bool:
    """Whether a text may be a client-id, a key of files, logs and tables."""
    return bool(_CLIENT_ID.fullmatch(text))


class DataProblem(StrEnum):
    """A category of faults in a client's data, without any of the data."""

    UNREADABLE = "unreadable"
    COLUMNS = "columns"
    SHAPE = "shape"
    VALUES = "values"
    LABELS = "labels"
    TOO_FEW = "too-few"
    NOT_TAKEN = "not-taken"

    @property
    def text(self) -> str:
        """The problem as a clause: ``data is refused: labels out of range``."""
        return f"data is refused: {_TEXTS[self]}"


_TEXTS = {
    DataProblem.UNREADABLE: "it cannot be read",
    DataProblem.COLUMNS: "columns missing or not named",
    DataProblem.SHAPE: "shapes or lengths do not fit",
    DataProblem.VALUES: "values that are not allowed",
    DataProblem.LABELS: "labels out of range",
    DataProblem.TOO_FEW: "too few examples",
    DataProblem.NOT_TAKEN: "the task takes no data of a client's own",
}
LOGGED = "(the client's log says more)"
"""End of an error of a client's code, as the server is told it."""
