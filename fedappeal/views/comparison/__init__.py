"""Comparing runs: groups by settings, means with intervals over seeds, paired differences, tables, pictures."""
