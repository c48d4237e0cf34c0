"""Flower's `flwr-serverapp`, by this Python, wherever the command of that name lies."""

from flwr.superlink.cli import flwr_serverapp

from fedappeal.flower.proxied import heed_proxies

if __name__ == "__main__":
    heed_proxies()
    flwr_serverapp()
