"""Sums of models, and bounds on what one client adds to them."""
