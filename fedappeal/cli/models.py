"""`fedappeal export` and `fedappeal predict`: a trained model for other programs, and what it says of new data."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from fedappeal.cli.option_groups import PredictOptions
from fedappeal.protocol.foreign_text import as_cell, printable
from fedappeal.record.folder import GIVEN
from fedappeal.record.lines import finite_json
from fedappeal.record.output import check_output
from fedappeal.record.reader import Record
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import write_output
from fedappeal.trained.card import CONFIG, ModelCard, model_file
from fedappeal.trained.model import Prediction, Predictions, TrainedModel, open_model


def start_export(path: Path, form: str, output: Path | None, allow: Sequence[str]) -> None:
    """Write a model in another form, and print how a program uses it.

    Args:
        path: a run's folder, or a file of a model.
        form: a form of `fedappeal.api.trained`.
        output: the file or folder; None: in this folder, called after the run's folder or the file.
        allow: packages whose code may run because the file names it.

    Raises:
        ConfigError: one line: a form, model or output that is not allowed, or a missing package.
    """
    from fedappeal.api.trained import check_export, export

    name = path.resolve().name if path.is_dir() else path.stem
    output = check_export(form, output, name, model_file(path))
    trained = _trained_model(path, allow)
    export(trained, form, output)
    card = trained.card
    scaled = card.normalisation
    typer.echo(f"{card.model} of {card.task}, {card.strategy}, round {card.round}: {output}")
    if card.input_shape:
        typer.echo(f"input   {card.input_dtype} (n, {', '.join(map(str, card.input_shape))})")
    if scaled is not None:
        typer.echo(f"scaled  (pixel / {scaled.scale:g} - {scaled.mean}) / {scaled.std}")
    if card.scaling is not None:
        typer.echo("scaled  inside: it takes the columns as they are")
    elif card.scale != "none":
        typer.echo("scaled  (column - mean) / standard deviation, of each client's own training data")
    if card.num_classes:
        names = f": {', '.join(card.class_names)}" if card.class_names else ""
        typer.echo(f"output  {card.num_classes} logits{names}")


WRITTEN_AS = (".csv", ".jsonl")
LONGEST_LABEL = 200


def _trained_model(path: Path, allow: Sequence[str]) -> TrainedModel:
    """Return the model of a run or file.

    Errors as `open_model`, and for a run of a program's own parts.
    """
    parts = Record(path).config.get(GIVEN, {}).get("task") if (path / CONFIG).is_file() else None
    if parts:
        raise ConfigError(
            f"'{path}' holds a run of a program's own {' and '.join(parts)}: that program's run.predict(...) and "
            f"run.export(...) use its model"
        )
    return open_model(path, allow)


def start_prediction(path: Path, options: PredictOptions) -> None:
    """Predict; print or write a line an example, and metrics if there are labels.

    Args:
        path: a run's folder, or a file of a model.
        options: the data, as `fedappeal.api.trained.predict_table` takes it, and how it is read.

    Raises:
        ConfigError: one line: a model, data, device or output that is not allowed; nothing is printed before.
    """
    output = options.output
    if output is not None:
        if output.suffix.lower() not in WRITTEN_AS:
            raise ConfigError(f"output = '{output}' is not allowed: a file {' or '.join(WRITTEN_AS)}")
        check_output("output", output, [path, options.data, Path(options.scale_from)])
    from client.settings import NodeSettings

    node = NodeSettings.parse({"device": options.device})
    model_file(path)
    from client.training.devices import pick_device
    from fedappeal.api.trained import predict_table
    from fedappeal.data.columns import Columns

    where, chosen = pick_device(node.device), Columns.parse(options.features, options.label)
    trained = _trained_model(path, options.allow or ())
    predictions, unlabelled = predict_table(trained, options.data, chosen, where, options.scale_from or None)
    if output is None:
        for line in _lines(predictions.lines):
            typer.echo(line)
    else:
        write_output("output", output, _file_text(predictions.lines, output.suffix.lower()).encode())
    for line in summary(predictions, trained.card, unlabelled):
        typer.echo(line)
    if output is not None:
        typer.echo(f"predictions {output}")


def summary(predictions: Predictions, card: ModelCard, unlabelled: str) -> list[str]:
    """Return the last lines: the number of examples, and the metrics or their absence's reason."""
    lines = [f"examples    {len(predictions.lines)}"]
    if unlabelled:
        return [*lines, f"{card.metric.name:<11} not measured: {unlabelled}"]
    for name in sorted(predictions.metrics, key=lambda name: name != card.metric.name):
        value = predictions.metrics[name]
        share = name == card.metric.name and card.metric.is_share
        lines.append(f"{name:<11} {f'{100 * value:.1f} %' if share else f'{value:.4f}'}")
    figure = card.figures.get(card.metric.column, card.figures.get(card.metric.name))
    if figure is not None:
        measured = f"{100 * figure:.1f} %" if card.metric.is_share else f"{figure:.4f}"
        lines.append(f"its card    {card.metric.name} {measured} on {card.measured_on}, which it was not trained on")
    return lines + [f"{name:<11} not measured: {why}" for name, why in predictions.missing.items()]


def _rounded(label: str | float) -> str:
    return label if isinstance(label, str) else f"{label:g}"


def _lines(lines: Sequence[Prediction]) -> Iterable[str]:
    names = [printable(_rounded(line.label), LONGEST_LABEL) for line in lines]  # a token may be a line's end
    wide, label = max(len(line.example) for line in lines), max(map(len, names))
    for line, name in zip(lines, names, strict=True):
        probability = "" if line.probability is None else f"  {line.probability:.3f}"
        given = _rounded(line.given)
        wrong = f"  (is {given})" if given not in ("", _rounded(line.label)) else ""
        yield f"{line.example:<{wide}}  {name:<{label}}{probability}{wrong}"


def _file_text(lines: Sequence[Prediction], form: str) -> str:
    rows = [{key: value for key, value in line._asdict().items() if value not in (None, "")} for line in lines]
    if form == ".jsonl":
        return "".join(finite_json(row) + "\n" for row in rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [key for key in Prediction._fields if any(key in row for row in rows)])
    writer.writeheader()
    writer.writerows({key: as_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()
