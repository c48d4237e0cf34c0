"""What the models kept on this device say of a file of its owner's: `fedappeal predict`, a process a model."""

import json
import subprocess  # nosec B404 # our own module, no shell
import sys
import tempfile
from pathlib import Path
from typing import Any

from client.state.preferred import kept_models
from client.state.store import DiskStore
from fedappeal.protocol.foreign_text import printable
from fedappeal.trained.card import ModelCard

MOST_BYTES = 16 << 20
"""Bytes of the file."""
MOST_MODELS, MOST_EXAMPLES = 4, 20
_TABLES, _IMAGES = (".csv", ".parquet", ".jsonl"), (".png", ".jpg", ".jpeg", ".bmp")
_WITHIN = 120.0
_LONGEST = 160


def try_models(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    """Return each kept model's answers for the first examples of an image or a table.

    Args:
        folder: the client's state folder.
        name: of the file; only its ending counts.
        content: of the file, which is deleted afterwards.

    Raises:
        ValueError: the file is of another kind, or no model is kept.
    """
    ending = Path(name).suffix.lower()
    if ending not in (*_TABLES, *_IMAGES):
        raise ValueError(f"a file {', '.join((*_IMAGES, *_TABLES))} is needed")
    store = DiskStore(folder)
    models = list(kept_models(store).items())[:MOST_MODELS]
    if not models:
        raise ValueError("no model is kept on this device yet")
    with tempfile.TemporaryDirectory(prefix="fedappeal-trial-") as temporary:
        data = Path(temporary, "data")
        data.mkdir()
        file = data / f"yours{ending}"
        file.write_bytes(content)
        given = file if ending in _TABLES else data
        return {"models": [_answers(store.path(record), card, given, Path(temporary)) for record, card in models]}


def _answers(model: Path, card: ModelCard, data: Path, temporary: Path) -> dict[str, Any]:
    """Return one model's answers, or in ``problem`` why it has none."""
    whose, output = "shared" if card.which == "global" else "own", temporary / "answers.jsonl"
    output.unlink(missing_ok=True)
    title = printable(f"{whose} model of {card.strategy} on {card.task}, round {card.round}", _LONGEST)
    words = ["predict", str(model), "--data", str(data), "--output", str(output), "--device", "cpu"]
    command = [sys.executable, "-P", "-m", "fedappeal.cli.main", *words]
    try:
        done = subprocess.run(  # nosec B603 # no shell
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_WITHIN, check=False
        )
    except subprocess.TimeoutExpired:
        return {"title": title, "answers": [], "problem": f"it has not answered within {_WITHIN:g} s"}
    if done.returncode != 0 or not output.exists():
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        problem = said.removeprefix("fedappeal: ").replace(str(data), "your file")
        return {"title": title, "answers": [], "problem": printable(problem, 2 * _LONGEST)}
    with output.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(MOST_EXAMPLES), strict=False)]
    answers = [
        {"label": printable(row.get("label", ""), _LONGEST), "probability": row.get("probability")} for row in rows
    ]
    return {"title": title, "answers": answers, "problem": ""}
