"""Runs: planned, swept, launched."""
