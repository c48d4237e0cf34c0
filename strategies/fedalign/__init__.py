"""FedALIGN: train for the priority clients; others help while their losses match.

`alignment` is the mathematics and the clients' policy, `strategy` the server's side and what clients report.
"""

from strategies.fedalign.alignment import accepts, joins
from strategies.fedalign.strategy import FedALIGN

__all__ = ["FedALIGN", "accepts", "joins"]
