"""The life of a client process: start, serving, its owner's commands, the end."""
