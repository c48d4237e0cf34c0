"""Whether another file of the same name is in the way of fedappeal's packages `client`, `server` and `strategies`.

Python finds a module in the first folder of its path that has one. With ``python -m`` and in a notebook this is the
current folder, whose ``client.py`` then hides the installed package.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("client", "server", "strategies")
"""What is installed beside the package ``fedappeal``."""


def check_names() -> None:
    """Check that the packages beside fedappeal are those that an import finds.

    Raises:
        ImportError: one line that names the file in the way.
    """
    root = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        in_the_way = _found(name)
        if in_the_way is not None and in_the_way.resolve() != root / name:
            raise ImportError(
                f"'{in_the_way}' is in the way of fedappeal's own package '{name}' ({root / name}): "
                f"rename it, or run from another folder",
                name=name,
            )


def _found(name: str) -> Path | None:
    """Return the file or folder that an import of a top-level name finds; None if there is none."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module else find_spec(name)
    except ValueError:  # it was made by hand, without a spec
        spec = None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None
