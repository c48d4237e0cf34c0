"""Packages of the extras: whether they are installed, told without importing them, which takes seconds."""

from importlib.util import find_spec

from fedappeal.settings.model import NotHere


def require(needs: str, extra: str, *packages: str) -> None:
    """Check that packages of an extra are installed; imports none of them.

    Args:
        needs: who needs them; ``{}`` in it stands for those that are missing.
        extra: which extra of fedappeal brings them.
        packages: what they are imported as.

    Raises:
        NotHere: one is missing; says how to install it.
    """
    if missing := [package for package in packages if _is_missing(package)]:
        raise NotHere(f"{needs.format(' and '.join(missing))}: pip install 'fedappeal[{extra}]'")


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # the package that it is in
        return True
