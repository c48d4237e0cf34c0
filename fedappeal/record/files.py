"""Names of the files of a run's folder.

``config.json`` (every setting, seed and version, the runtime, and each time that the run was continued),
``history.jsonl`` (a line a round), ``participation.jsonl`` (the same: `fedappeal.record.decisions`),
``measurements.jsonl`` (a line a round: what each client measured), ``policies.jsonl`` (client-id and policy, where
the run mixes policies), ``events.jsonl`` (arrivals, refusals, failures, the end), ``requirements.jsonl`` (each
client's rho_k, which a simulated run alone knows), ``initial.safetensors`` (w_0, of local runs),
``checkpoint.safetensors`` (what ``fedappeal resume`` continues from; ``checkpoint-ROUND.safetensors``: the two
before it),
``initial-HASH.safetensors`` (w_0 of these; and a copy) and ``model.safetensors`` (the global model by parameter
names). A simulated run leaves its clients' memory too: `fedappeal.simulation.memory`.
"""

from fedappeal.trained.model import CONFIG as CONFIG  # both names are its own: what makes a folder a run's
from fedappeal.trained.model import MODEL as MODEL

HISTORY = "history.jsonl"
PARTICIPATION = "participation.jsonl"
MEASUREMENTS = "measurements.jsonl"
POLICIES = "policies.jsonl"
EVENTS = "events.jsonl"
REQUIREMENTS = "requirements.jsonl"
WRITTEN_ON = (EVENTS, POLICIES, HISTORY, PARTICIPATION, MEASUREMENTS)
"""Files of JSON lines to which a run appends, in the order in which a resume rewrites them."""
CHECKPOINT = "checkpoint.safetensors"
INITIAL = "initial.safetensors"
