"""FedALIGN: its figures."""
