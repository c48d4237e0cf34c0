"""ADA-GD's orthogonal projection, for use on its own."""

from strategies.adagd.projection import norm, orthogonal_component

__all__ = ["norm", "orthogonal_component"]
