"""Views of runs: terminal, report, live page, trackers, metrics, comparison. They read records."""
