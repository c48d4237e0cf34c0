"""FedALIGN: its figures and its theorem."""
