"""The benchmark of free participation: which strategy keeps which volunteers."""
