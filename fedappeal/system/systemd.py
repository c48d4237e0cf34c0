"""Paths in units of systemd."""

from pathlib import Path

from fedappeal.settings.config import ConfigError


def unit_path(path: Path | str, setting: str) -> str:
    """Return a path as it stands in a unit, between quotation marks where several words may.

    Args:
        path: the path.
        setting: what a message calls it.

    Raises:
        ConfigError: it has a line break, a quotation mark or such.
    """
    text = str(path)
    if not text.isprintable() or set(text) & set('"\\$'):
        raise ConfigError(
            f"{setting} = {text!r} is not allowed with --service: a path without quotation marks, $ and \\"
        )
    return text.replace("%", "%%")
