"""A node's side of Flower: the Fleet API."""
