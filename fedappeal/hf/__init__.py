"""Hugging Face models: tasks on texts, whole or by LoRA adapters; `pip install 'fedappeal[hf]'`.

Importing this package loads neither torch nor transformers.
"""

from typing import TYPE_CHECKING, Any

from fedappeal.hf.text_task import CausalLM, TextClassification

if TYPE_CHECKING:
    from fedappeal.hf.models import Logits

__all__ = ["CausalLM", "Logits", "TextClassification"]


def __getattr__(name: str) -> Any:
    """Import `Logits` when it is asked for: it is a torch module."""
    if name != "Logits":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from fedappeal.hf.models import Logits

    return Logits
