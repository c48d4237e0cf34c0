"""Engine workers: a run's clients shared out over processes, on this machine or on a Ray cluster."""
