"""What a run learned, to the bit."""

from pathlib import Path

from fedappeal.record.lines import MODEL
from fedappeal.system.files import read_safetensors


def learned(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each array of a run's model; its card tells the date and the run besides."""
    return {name: array.tobytes() for name, array in read_safetensors(folder / MODEL)[0].items()}
