"""This package's version, and those of installed packages, as every result records them."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

FEDAPPEAL = "0.1.0"
"""This package's version, which clients and runs tell each other."""
_RECORDED = ("fedappeal", "flwr", "torch", "torchvision", "numpy", "grpcio", "protobuf")


@cache
def version_of(package: str) -> str:
    """Return an installed package's version, or ``not installed``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def recorded_versions() -> dict[str, str]:
    """Return the versions that are recorded with every run."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version_of(package) for package in _RECORDED},
    }
