"""The tasks that come with fedappeal, one data set a module."""
