"""Metrics for Prometheus: of a run, from its folder, and of a client."""
