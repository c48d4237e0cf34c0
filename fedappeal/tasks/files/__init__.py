"""Files of data sets: where they are found, how they are downloaded and read."""
