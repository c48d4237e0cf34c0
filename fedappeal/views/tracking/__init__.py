"""Trackers: a run's settings, rounds and model, recorded in other programs' stores while it runs."""
