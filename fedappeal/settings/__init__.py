"""The settings of runs and owners."""
