"""What libraries print and warn of while a run is quiet."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

_CHANGING = threading.Lock()
_quiet: list[ExitStack] = []
"""What puts all back, once for each quiet run of this process; the first one has something to put back."""


class Notice(UserWarning):
    """A warning of fedappeal's own, which a quiet run shows too."""


@contextmanager
def silence(quiet: bool) -> Iterator[None]:
    """Hide libraries' warnings and progress bars during the block, if quiet."""
    if not quiet:
        yield
        return
    with _CHANGING:
        _quiet.append(stack := ExitStack())
        if len(_quiet) == 1:
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            warnings.filterwarnings("default", category=Notice)
            stack.enter_context(_no_bars())
    try:
        yield
    finally:
        with _CHANGING:
            _quiet.pop().close()


@contextmanager
def _no_bars() -> Iterator[None]:
    """Disable tqdm's bars; those of `datasets` and `transformers` derive from them."""
    if find_spec("tqdm") is None:
        yield
        return
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    shown = tqdm.__init__

    def hidden(self: Any, *arguments: Any, **options: Any) -> None:
        shown(self, *arguments, **{**options, "disable": True})

    tqdm.__init__ = hidden
    try:
        yield
    finally:
        tqdm.__init__ = shown
