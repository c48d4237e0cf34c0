"""ADA-GD: its figures, the data of its agents, and its examples in the plane."""
