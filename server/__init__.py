"""The ServerApp: the run by its settings, checkpoints and resume, the run's folder."""
