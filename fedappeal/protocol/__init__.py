"""What both sides agree on: names on the wire, decisions, draws, packing, the run configuration."""
