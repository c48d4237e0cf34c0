"""Output that its stream can encode.

A character that it cannot becomes a plainer one of the same width.
"""

import codecs
import sys
import unicodedata
from typing import TextIO

_PLAIN = {"●": "#", "○": "o", "×": "x", "·": ".", "–": "-", "—": "-", "…": ".", "→": ">", "≥": ">", "≤": "<"}
_NAME = "fedappeal-plain"


def write_encodable(*streams: TextIO) -> None:
    """Make streams replace characters that they cannot encode; by default both.

    Else they would raise UnicodeEncodeError.
    """
    codecs.register_error(_NAME, _plainer)
    for stream in streams or (sys.stdout, sys.stderr):
        if getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_NAME)


def _plainer(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    base = _PLAIN.get(character) or unicodedata.normalize("NFKD", character)[0]
    return base if base.isascii() else "?"
