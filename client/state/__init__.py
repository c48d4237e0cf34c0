"""A client's memory between rounds and runs: durable on disk, or in a simulator."""
