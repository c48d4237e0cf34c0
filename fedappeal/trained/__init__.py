"""Trained models after their run: their cards, and how they are loaded, exported and used."""

from fedappeal.trained.card import ModelCard, read_card
from fedappeal.trained.model import TrainedModel, load_model, open_model

__all__ = ["ModelCard", "TrainedModel", "load_model", "open_model", "read_card"]
