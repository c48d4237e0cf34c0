"""A trained model in a form that other programs read: ONNX, or plain safetensors."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedappeal.settings.config import ConfigError
from fedappeal.system.files import CARD, replace_file, write_safetensors
from fedappeal.trained.model import TrainedModel

if TYPE_CHECKING:
    from torch import nn

INPUT, OUTPUT, BATCH = "input", "output", "batch"
"""Names in an ONNX model: its input, its output, and the axis that counts the examples."""


def check_onnx() -> None:
    """Check that what writes ONNX is installed.

    Raises:
        ConfigError: one line: a missing package.
    """
    if missing := [package for package in ("onnx", "onnxscript") if find_spec(package) is None]:
        raise ConfigError(f"to = 'onnx' needs {' and '.join(missing)}: pip install 'fedappeal[export]'")


def write_plain(trained: TrainedModel, path: Path) -> None:
    """Write the whole model as safetensors, its card's fields as texts in the metadata."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in trained.model.state_dict().items()}
    card = trained.card.model_copy(update={"shared": "all"})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, arrays, {CARD: card.to_json()}, texts={**card.texts(), "format": "pt"})


def write_onnx(trained: TrainedModel, path: Path) -> None:
    """Write the model as ONNX: one input ``(batch, *input_shape)``, normalised as the card says.

    The number of examples is free. The card's fields are in the model's ``metadata_props``.

    Raises:
        ConfigError: one line: packages that are missing, or a model that cannot be exported.
    """
    check_onnx()
    card = trained.card
    if not card.input_shape:
        raise ConfigError(
            f"to = 'onnx' is not allowed for task '{card.task}': it names no input-shape (a single tensor); "
            f"--to safetensors takes any model"
        )
    content = _onnx(trained)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def _onnx(trained: TrainedModel) -> bytes:
    import torch

    card = trained.card
    dtype = getattr(torch, card.input_dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"input-dtype = '{card.input_dtype}' of the card is no dtype of torch's")
    example = torch.zeros((2, *card.input_shape), dtype=dtype)  # of one example the exporter makes a constant
    try:
        program = torch.onnx.export(
            _called(trained),
            (example,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim(BATCH)},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        model = program.model_proto
        for key, value in {**card.texts(), CARD: card.to_json()}.items():
            model.metadata_props.add(key=key, value=value)
        return bytes(model.SerializeToString())
    except Exception as error:  # the exporter fails in ways of its own, over many lines
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the model of task '{card.task}' cannot be exported: {reason}") from error


def _called(trained: TrainedModel) -> "nn.Module":
    """Return a module that calls the model as its task does."""
    import torch

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = trained.model

        def forward(self, x: torch.Tensor) -> Any:
            return trained.task.forward(self.model, x)

    return Called().eval()
