"""Simulate on disks that are too small, a page more each, and continue once there is room.

    python -m tests.soak.full_disk --step 1 --out FOLDER

Each disk is a tmpfs, so this has to be root. Exit code 0: each run ended with one line and left nothing half-written,
and went on to the end of an undisturbed run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedappeal.record.lines import CONFIG
from tests.soak.kills import KINDS, SIMULATED, Forks, Wrong, check_tidy, judged, outcome

PAGE = 4096
ROOMY = "64m"


@contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a tmpfs of a size.

    Raises:
        PermissionError: this user may not.
    """
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise PermissionError(mounted.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def make_room(folder: Path) -> None:
    """Make a mounted disk large."""
    subprocess.run(["mount", "-o", f"remount,size={ROOMY}", str(folder)], check=True)


def main() -> int:
    """Fill disks, print what is wrong, and return 0 where nothing is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=int, default=1, help="pages of 4 KiB from one disk to the next")
    parser.add_argument("--out", type=Path, help="a new folder; default: one in the system's temporary folder")
    given = parser.parse_args()
    folder = (given.out or Path(tempfile.mkdtemp(prefix="full-disk-"))).absolute()
    folder.mkdir(exist_ok=True)
    forks, path, wrong = Forks(folder), folder / "disk" / "run", list[str]()
    begin = ["simulate", *SIMULATED.split(), *KINDS["mixture"].options.split(), "--out", str(path)]
    with disk(path.parent, ROOMY):
        code, _ = forks.run(begin, path)
        if code:
            raise Wrong(f"an undisturbed run ended with {code}: {forks.said}")
        expected = outcome(path)
    full, pages, code = 0, 1, 1
    while code:  # until one is large enough
        with disk(path.parent, str(pages * PAGE)), judged(f"{pages} pages", wrong):
            code, _ = forks.run(begin, path)
            if code:
                full += 1
                _continue(forks, begin, path, code)
                if outcome(path) != expected:
                    raise Wrong("its outcome is not that of the undisturbed run")
        pages += given.step
    print(json.dumps({"full": full, "wrong": len(wrong)}))
    return 1 if wrong else 0


def _continue(forks: Forks, begin: list[str], path: Path, code: int) -> None:
    begun = (path / CONFIG).exists()
    if code != (1 if begun else 2) or len(forks.complaints) != 1 or "No space left on device" not in forks.said:
        raise Wrong(f"it ended with {code}: {forks.said}")
    if left := [file.name for file in path.rglob("*") if ".tmp" in file.name]:
        raise Wrong(f"it left {left}")
    make_room(path.parent)
    code, _ = forks.run(["resume", str(path)] if begun else begin, path)
    if code and not (code == 2 and "has finished all its" in forks.said):
        raise Wrong(f"it did not continue, but ended with {code}: {forks.said}")
    check_tidy(path)


if __name__ == "__main__":
    sys.exit(main())
