"""Shared parts of all strategies: the base class, rounds, messages, members, replies and sums."""
