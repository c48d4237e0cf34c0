"""The reason of an error for the server: one line without anything of the device's files."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from client.data.unfit import OwnDataError
from fedappeal.protocol.foreign_text import printable
from fedappeal.settings.config import ConfigError

LONGEST = 500
"""Characters of a reason."""
ELSEWHERE = "(a file of this device)"
"""Stands for each path."""

_QUOTED = re.compile(r"""'[^'\n]*[/\\].*?'(?=[\s:;,.)\]]|$)|"[^"\n]*[/\\][^"\n]*\"""")
_BARE = re.compile(r"""(?:(?<=[\s=:(\[,;])|^)(?:~|\.{1,2}|[A-Za-z]:|file:)?[/\\][^\s'",;)\]]*""")


def reason_of(error: BaseException, folders: Iterable[str] = ()) -> str:
    """Return what the server is told of an error.

    The text of a `ConfigError` is about settings, which the server's operator can change; that of any other error may
    hold anything, values of the owner's data among it. The owner's own log has all of it.

    Args:
        error: what was raised.
        folders: files and folders of the owner's, whatever their names look like.
    """
    kind = type(error).__name__
    if isinstance(error, OwnDataError):
        return f"{kind}: {error.problem.text} (the client's log says more)"
    if isinstance(error, ConfigError):
        return printable(without_paths(f"{kind}: {' '.join(str(error).split())}", folders), LONGEST)
    return printable(f"{kind} (the client's log says more)", LONGEST)


def without_paths(text: str, folders: Iterable[str] = ()) -> str:
    """Return a text in which nothing that looks like a path is left, nor these folders and what is in them."""
    paths = {*folders, str(Path.home()), str(Path.cwd()), sys.prefix} - {"", "/"}
    for folder in sorted(paths, key=len, reverse=True):
        text = re.sub(rf"""['"]?{re.escape(folder)}[^\s'"]*['"]?""", ELSEWHERE, text)
    return _BARE.sub(ELSEWHERE, _QUOTED.sub(ELSEWHERE, text))
