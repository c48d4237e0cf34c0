"""A model as the server holds it, and its layers by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedappeal.protocol.packing import Layout, view

if TYPE_CHECKING:
    from flwr.app import ArrayRecord as Model
else:
    Model = Any  # where settings are read, Flower need not be loaded

__all__ = ["Layers", "Model", "layers_of", "model_of_layers"]

Layers = Mapping[str, NDArray[Any]]
"""A model's parameters and buffers by name."""


def layers_of(model: Model, layout: Layout | None) -> dict[str, NDArray[Any]]:
    """Return a model's layers as read-only views, without a copy.

    Args:
        model: packed, or an array a layer.
        layout: names, shapes and dtypes of the layers; None: the model is an array a layer.

    Raises:
        ValueError: the model does not have this layout.
    """
    return {name: view(array) for name, array in model.items()} if layout is None else layout.unpack(model)


def model_of_layers(layers: Layers, like: Model, layout: Layout | None) -> Model:
    """Return layers as a model, packed where another is.

    Args:
        layers: all of the model's, of the shapes and dtypes that they have there.
        like: a model with this layout.
        layout: as for `layers_of`.

    Raises:
        ValueError: the layers do not have this layout.
    """
    if layout is None:
        return Layout.of(layers_of(like, None)).named(layers)
    return layout.pack(layers) if layout.is_packed(like) else layout.named(layers)
