"""A Flower app of scikit-learn."""
