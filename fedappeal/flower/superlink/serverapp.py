"""Flower's `flwr-serverapp`, by this Python, wherever the command of that name lies."""

from flwr.superlink.cli import flwr_serverapp

if __name__ == "__main__":
    flwr_serverapp()
