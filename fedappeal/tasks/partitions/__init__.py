"""How a data set is dealt out to clients, and how each splits its share."""
