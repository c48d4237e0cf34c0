"""What a container's own process logs, in the format of ``LOG_FORMAT``."""

import os

from fedappeal.system.json_log import TEXT, is_json, json_line


def tell(text: str, **facts: object) -> None:
    """Print one line.

    Args:
        text: the line.
        facts: of a JSON line, as in `fedappeal.system.json_log.json_line`.

    Raises:
        ConfigError: ``LOG_FORMAT`` is none.
    """
    as_json = is_json(os.environ.get("LOG_FORMAT") or TEXT)
    line = json_line("info", "fedappeal.containers", text, {"event": "log", **facts}) if as_json else text
    print(line, flush=True)
