"""How much memory there is: the machine's, or less in a container."""

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
