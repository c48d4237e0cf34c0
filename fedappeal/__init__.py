"""fedappeal: federated learning for volunteers, on Flower."""

__version__ = "0.1.0"
