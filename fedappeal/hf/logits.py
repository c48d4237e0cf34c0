"""A transformers model in the form that any PyTorch program expects: a module that returns one tensor."""

from typing import Any

from torch import Tensor, nn


class Logits(nn.Module):
    """A model of transformers or PEFT as a module that returns its logits alone.

    The wrapped model stays an attribute: ``wrapped.model.save_pretrained(folder)`` writes it as Hugging Face does.

    Args:
        model: returns an object with ``logits``; it gets the arguments as they are given.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **inputs: Any) -> Tensor:
        """Return the logits, in the form that the model gives them."""
        logits: Tensor = self.model(*args, **inputs).logits
        return logits
