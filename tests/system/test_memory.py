"""How much memory there is: the machine's, or less in a container."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedappeal.system import memory


@pytest.mark.parametrize(
    ("limit", "least"), [("1048576\n", 1 << 20), ("max\n", None), (f"{1 << 62}\n", None), (None, None)]
)
def test_a_container_may_use_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, least: int | None
) -> None:
    path = tmp_path / "memory.max"
    if limit is not None:
        path.write_text(limit)
    monkeypatch.setattr(memory, "CONTAINER_LIMIT", path)
    assert memory.memory_bytes() == (least or psutil.virtual_memory().total)


SHARES = "import os, time; held = bytearray(os.urandom(1 << 20)) * 200; os.fork(); print(flush=True); time.sleep(600)"


def test_what_processes_share_counts_once_and_is_looked_at_only_where_it_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen([sys.executable, "-c", SHARES], stdout=subprocess.PIPE) as process:
        family = [psutil.Process(process.pid)]
        try:
            assert process.stdout
            assert [process.stdout.readline() for _ in range(2)] == [b"\n"] * 2
            family += family[0].children()
            assert memory.holds_more(process.pid, 150 << 20)
            assert not memory.holds_more(process.pid, 300 << 20), "200 MiB are both processes'"
            monkeypatch.delattr(psutil.Process, "memory_full_info")
            assert not memory.holds_more(process.pid, 600 << 20)
            assert memory.holds_more(process.pid, 300 << 20), "a system that does not tell what is shared"
        finally:
            for one in family:
                one.kill()
    assert not memory.holds_more(process.pid, 0)
