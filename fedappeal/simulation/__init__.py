"""The in-process runtime: the same apps as deployed, many virtual clients in one process."""
