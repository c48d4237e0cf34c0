"""Programs that measure what docs/benchmarks.md reports: rows of one runner, ``python -m benchmarks ROW...``."""
