"""What is made of a trained model: predictions of new data, and files and folders for other programs."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fedappeal.record.output import check_output
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import written_as
from fedappeal.trained.model import Predictions, TrainedModel, check_onnx, predict, write_onnx, write_plain

if TYPE_CHECKING:
    import torch

    from fedappeal.data.columns import Columns

FILES: dict[str, tuple[str, Callable[[TrainedModel, Path], None]]] = {
    "onnx": (".onnx", write_onnx),
    "safetensors": (".safetensors", write_plain),
}
FOLDERS = ("huggingface", "adapter")
"""Forms that are folders which ``from_pretrained`` reads: adapters merged into the model, or alone."""


def check_export(form: str, output: Path | None, name: str, source: Path) -> Path:
    """Return an export's path, checked to be writable.

    Args:
        form: of `FILES` or `FOLDERS`.
        output: the file or folder; None: in this folder, called after the model.
        name: the model's.
        source: the model's file.

    Raises:
        ConfigError: one line: a form or output that is not allowed, or a missing package.
    """
    if form not in (*FILES, *FOLDERS):
        raise ConfigError(f"to = '{form}' is not allowed: {', '.join((*FILES, *FOLDERS))}")
    output = output or Path(f"{name}{FILES[form][0]}" if form in FILES else f"{name}-{form}")
    if form in FOLDERS and output.exists():
        raise ConfigError(f"output = '{output}' is not allowed: it is there already; a new folder is made")
    check_output("output", output, [source])
    if form == "onnx":
        check_onnx()
    return output


def export(trained: TrainedModel, form: str, output: Path) -> None:
    """Write a model in another form, all or nothing.

    Raises:
        ConfigError: one line: a model that has no such form, or an output that cannot be written.
    """
    if form in FILES:
        with written_as("output", output):
            FILES[form][1](trained, output)
        return
    from fedappeal.hf.models import pretrained, quiet

    with quiet():
        model = pretrained(trained.model, form == "adapter")
        output.parent.mkdir(parents=True, exist_ok=True)
        with (
            written_as("output", output),
            TemporaryDirectory(prefix=".export-", dir=output.parent) as aside,
        ):
            (folder := Path(aside, output.name)).mkdir()
            model.save_pretrained(folder)
            if (tokenizer := getattr(trained.task, "tokenizer", None)) is not None:
                tokenizer.save_pretrained(folder)
            (folder / "fedappeal.json").write_text(trained.card.to_json(), "utf-8")
            folder.rename(output)


def predict_table(
    trained: TrainedModel,
    data: Any,
    columns: "Columns",
    device: "torch.device | str" = "cpu",
    scale_from: Any = None,
) -> tuple[Predictions, str]:
    """Return a model's predictions, and the reason why nothing is measured, or ''.

    Args:
        trained: the model.
        data: a path of a folder of images, a table, an ``.npz``, or what the model's task reads; or a DataFrame, a
            `datasets.Dataset` or an array.
        columns: of a table.
        device: where it predicts.
        scale_from: whose training data scale a table's columns: a table, a client's model, a DataFrame or a
            `fedappeal.data.scaling.Scaler`; None: as the card says.

    Raises:
        ConfigError: one line: data that cannot be read, or do not fit the model.
    """
    from client.data.to_predict import examples_of, scaler_from

    card, task, scaler = trained.card, trained.task, scale_from
    if scale_from is not None and not hasattr(scale_from, "scaled"):
        source = str(scale_from) if isinstance(scale_from, PathLike) else scale_from
        scaler = scaler_from(source, card, task, columns)
    examples = examples_of(data, card, task, columns, scaler)
    return predict(trained, examples.batches, device), examples.unlabelled
