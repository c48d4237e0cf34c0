"""The models of a run's last rounds, a file each: ``model-ROUND.safetensors``."""

import re
from pathlib import Path

from fedappeal.protocol.packing import Arrays
from fedappeal.record.folder import RunFolder
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import CARD, read_safetensors, write_safetensors
from server.server_run import run_card

_FILE = re.compile(r"model-([0-9]{1,18})\.safetensors")


def keep_model(plan: RunPlan, server_round: int, arrays: Arrays, most: int) -> None:
    """Write a finished round's model, and delete all but the latest ``most``."""
    folder = RunFolder.open(plan.path)
    card = run_card(plan.task, plan.config, folder, server_round, arrays)
    write_safetensors(_file(plan.path, server_round), arrays, {CARD: card.to_json()}, durable=False)
    for number in _rounds(plan.path):
        if number <= server_round - most:
            _file(plan.path, number).unlink()


def kept_model(path: Path, server_round: int) -> Arrays:
    """Return the model of a round whose file is in a run's folder.

    Raises:
        ConfigError: it is not there, or cannot be read.
    """
    file = _file(path, server_round)
    if not file.exists():
        rounds = ", ".join(map(str, _rounds(path))) or "none is"
        raise ConfigError(f"round = {server_round} is not allowed: keep_models has kept no such model ({rounds})")
    return read_safetensors(file)[0]


def _file(path: Path, server_round: int) -> Path:
    return path / f"model-{server_round}.safetensors"


def _rounds(path: Path) -> list[int]:
    matches = (_FILE.fullmatch(file.name) for file in path.glob("model-*.safetensors"))
    return sorted(int(match[1]) for match in matches if match)
