"""A client's data: its own files, or its share of a data set, loaded once."""
