"""What is made of a trained model: predictions of new data, and files and folders for other programs."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fedappeal.settings.config import ConfigError
from fedappeal.system.files import check_file
from fedappeal.trained.model import Predictions, TrainedModel, check_onnx, predict, write_onnx, write_plain

if TYPE_CHECKING:
    import torch

    from client.data.columns import Columns

FILES: dict[str, tuple[str, Callable[[TrainedModel, Path], None]]] = {
    "onnx": (".onnx", write_onnx),
    "safetensors": (".safetensors", write_plain),
}
FOLDERS = ("huggingface", "adapter")
"""Forms that are folders which ``from_pretrained`` reads: adapters merged into the model, or alone."""


def check_export(form: str, output: Path | None, name: str, source: Path) -> Path:
    """Return where an export goes, after a check that it can be written there.

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
    if output.exists() and output.samefile(source):
        raise ConfigError(f"output = '{output}' is not allowed: it is the model itself; name another file (--output)")
    if form in FOLDERS and output.exists():
        raise ConfigError(f"output = '{output}' is not allowed: it is there already; a new folder is made")
    check_file("output", output)
    if form == "onnx":
        check_onnx()
    return output


def export(trained: TrainedModel, form: str, output: Path) -> None:
    """Write a model in another form; nothing is there until all is.

    Raises:
        ConfigError: one line: a model that has no such form.
    """
    if form in FILES:
        FILES[form][1](trained, output)
        return
    from fedappeal.hf.models import pretrained, quiet

    with quiet():
        model = pretrained(trained.model, form == "adapter")
        output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=output.parent) as aside:
            (folder := Path(aside, output.name)).mkdir()
            model.save_pretrained(folder)
            if (tokenizer := getattr(trained.task, "tokenizer", None)) is not None:
                tokenizer.save_pretrained(folder)
            (folder / "fedappeal.json").write_text(trained.card.to_json())
            folder.rename(output)


def predicted(
    trained: TrainedModel, data: Path, columns: "Columns", device: "torch.device | str" = "cpu"
) -> tuple[Predictions, str]:
    """Return what a model says of data, and why nothing is measured; empty: it is.

    Args:
        trained: the model.
        data: a folder of images, a table, an ``.npz``, or what the model's task reads.
        columns: of a table.
        device: where it predicts.

    Raises:
        ConfigError: one line: data that cannot be read, or do not fit the model.
    """
    from client.data.to_predict import examples_in

    examples = examples_in(data, trained.card, trained.task, columns)
    return predict(trained, examples.batches, device), examples.unlabelled
