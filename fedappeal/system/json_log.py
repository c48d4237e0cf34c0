"""Log lines as JSON, one event a line, with the same fields everywhere."""

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError

FIELDS = ("time", "level", "logger", "event", "message", "run", "round", "client")
"""What every line has; null where it is not known."""
TEXT, JSON = "text", "json"
LOG_FORMAT = "FEDAPPEAL_LOG_FORMAT"
"""Environment variable: the format of processes that a command starts."""
_LONGEST = 2000


def is_json(log_format: str) -> bool:
    """Return whether a format is JSON lines.

    Raises:
        ConfigError: it is none.
    """
    if log_format not in (TEXT, JSON):
        raise ConfigError(f"log-format = '{log_format}' is not allowed: {TEXT}, {JSON}")
    return log_format == JSON


def json_line(
    level: str,
    logger: str,
    message: object,
    facts: Mapping[str, object],
    seconds: float | None = None,
) -> str:
    """Return a log line as JSON.

    Args:
        level: ``info``, ``warning`` or ``error``.
        logger: what it comes from.
        message: one line for a person; other parties may have written parts of it.
        facts: ``event``, ``run``, ``round`` and ``client``, as far as they are known.
        seconds: when, since 1970; None: now.
    """
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    values = {
        "time": moment.isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "message": printable(message, _LONGEST),
        **{key: facts.get(key) for key in ("event", "run", "round", "client")},
    }
    return json.dumps({field: values[field] for field in FIELDS})


def chosen_formatter(text: logging.Formatter) -> logging.Formatter:
    """Return the formatter that the environment asks for.

    Args:
        text: the one for text.

    Raises:
        ConfigError: it asks for no format.
    """
    return JsonFormat() if is_json(os.environ.get(LOG_FORMAT) or TEXT) else text


def print_log(logger: logging.Logger, formatter: logging.Formatter, stream: TextIO | None = None) -> None:
    """Let a logger print lines, unless it has a handler; ``stream``: None is standard error."""
    if not logger.handlers:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


class JsonFormat(logging.Formatter):
    """A formatter of log records as such lines; ``extra`` has the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            message = f"{message}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        facts = {"event": "log", **vars(record)}
        return json_line(record.levelname.lower(), record.name, message, facts, record.created)
