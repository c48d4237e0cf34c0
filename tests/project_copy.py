"""A copy of what the project's own bundle is made of."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_project(folder: Path) -> Path:
    """Copy the project's packages and its files; return the folder.

    Flower looks at each file of a project that it builds, at a virtual environment's 90,000 too.
    """
    for name in ("client", "fedappeal", "server", "strategies"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for name in ("LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder
