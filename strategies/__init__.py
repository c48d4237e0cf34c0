"""What the server does with the replies: one file per algorithm, on the volunteers' round loop."""

from strategies.fedavg import FedAvg
from strategies.hooks import Hooks, RoundRecord
from strategies.maxfl import MaxFL, appeal_weight
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy

__all__ = ["FedAvg", "Hooks", "MaxFL", "RoundRecord", "Shared", "VolunteerStrategy", "appeal_weight"]
