"""A Flower app whose clients are volunteers."""
