"""Flower's SuperLink in this process, and what guards it."""
