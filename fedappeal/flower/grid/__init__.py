"""The ServerApp's side of Flower: replies over the Runtime API."""
