"""The operator's live page: a run's rounds and clients as they come, stop and resume."""
