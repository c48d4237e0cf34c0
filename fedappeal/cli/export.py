"""`fedappeal export`: a trained model for other programs."""

from collections.abc import Sequence
from pathlib import Path

import typer

from fedappeal.cli.checks import check_file
from fedappeal.settings.config import ConfigError
from fedappeal.trained.model import model_file, open_model

FORMATS = {"onnx": ".onnx", "safetensors": ".safetensors"}


def start_export(path: Path, form: str, output: Path | None, allow: Sequence[str]) -> None:
    """Write a model in another form, and print what a program needs to know of it.

    Args:
        path: a run's folder, or a file of a model.
        form: one of `FORMATS`.
        output: the file; None: in this folder, called after the run's folder or the file.
        allow: packages whose code may run because the file names it.

    Raises:
        ConfigError: one line: a form, model or output that is not allowed, or a missing package.
    """
    if form not in FORMATS:
        raise ConfigError(f"to = '{form}' is not allowed: {', '.join(FORMATS)}")
    source = model_file(path)
    name = path.resolve().name if path.is_dir() else path.stem
    output = output or Path(f"{name}{FORMATS[form]}")
    if output.exists() and output.samefile(source):
        raise ConfigError(f"output = '{output}' is not allowed: it is the model itself; name another file (--output)")
    check_file("output", output)
    from fedappeal.trained.export import check_onnx, write_onnx, write_plain

    if form == "onnx":
        check_onnx()
    trained = open_model(path, allow)
    (write_onnx if form == "onnx" else write_plain)(trained, output)
    card = trained.card
    scaled = card.normalisation
    typer.echo(f"{card.model} of {card.task}, {card.strategy}, round {card.round}: {output}")
    if card.input_shape:
        typer.echo(f"input   {card.input_dtype} (n, {', '.join(map(str, card.input_shape))})")
    if scaled is not None:
        typer.echo(f"scaled  (pixel / {scaled.scale:g} - {scaled.mean}) / {scaled.std}")
    if card.num_classes:
        names = f": {', '.join(card.class_names)}" if card.class_names else ""
        typer.echo(f"output  {card.num_classes} logits{names}")
