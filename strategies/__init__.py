"""What the server does with the replies: one file per algorithm, on the volunteers' round loop."""

from strategies.adagd import AdaGD
from strategies.fedalign import FedALIGN
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.hooks import Hooks, RoundRecord
from strategies.maxfl import MaxFL, appeal_weight
from strategies.maxfl_adagd import MaxFLAdaGD
from strategies.mwfed import MWFed
from strategies.perfedavg import PerFedAvg
from strategies.pfedme import PFedMe
from strategies.qfedavg import QFedAvg
from strategies.scaffold import Scaffold
from strategies.shared import Shared
from strategies.volunteers import VolunteerStrategy

__all__ = [
    "AdaGD",
    "FedALIGN",
    "FedAvg",
    "FedProx",
    "Hooks",
    "MWFed",
    "MaxFL",
    "MaxFLAdaGD",
    "PFedMe",
    "PerFedAvg",
    "QFedAvg",
    "RoundRecord",
    "Scaffold",
    "Shared",
    "VolunteerStrategy",
    "appeal_weight",
]
