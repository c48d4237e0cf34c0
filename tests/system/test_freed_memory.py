"""Freed memory goes back to the system, also where several threads have used it."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedappeal.system.tuning import return_freed_memory

if sys.argv[1] == "yes":
    return_freed_memory()


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


def blocks(number):
    held = [bytes([number]) * (5 << 20) for _ in range(10)]
    small = [bytes([number]) * 3000 for _ in range(10)]  # lies above them in the thread's heap
    del held
    return small


bytes([1]) * (30 << 20)  # freed: from now on glibc maps no block of up to this size alone
before = resident()
with ThreadPoolExecutor(4) as threads:
    kept = list(threads.map(blocks, range(8)))
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_what_was_freed_is_not_kept() -> None:
    kept = {
        set_so: int(subprocess.check_output([sys.executable, "-c", textwrap.dedent(PROGRAM), set_so], text=True))
        for set_so in ("yes", "no")
    }
    assert kept["yes"] < 8
    assert kept["no"] > 2 * 8, "else the setting is of no use"
