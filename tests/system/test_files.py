"""What a killed process leaves half-written is told from everything else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from fedappeal.system.files import delete_unfinished, read_safetensors, write_safetensors

KILLED = """
import os, signal, sys
from pathlib import Path
import fedappeal.system.files as files

def killed(path):
    (path.parent / ".tmpAb12Cd").write_bytes(path.read_bytes())  # as safetensors leaves it, killed in its write
    os.kill(os.getpid(), signal.SIGKILL)

files.seal = killed
files.write_safetensors(Path(sys.argv[1]), {}, {"round": 2})
"""


def test_half_written_files_are_deleted_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "run-a.safetensors"
    write_safetensors(path, {"w": np.ones(3)}, {"round": 1})
    others = {".tmpfolder", ".hidden", "lock", "run-b.safetensors.damaged", "a.1.tmp", path.name}
    for name in others - {path.name, ".tmpfolder"}:
        (tmp_path / name).touch()
    (tmp_path / ".tmpfolder").mkdir()
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == len(others) + 2
    delete_unfinished(tmp_path)
    assert set(os.listdir(tmp_path)) == others
    assert read_safetensors(path)[1] == {"round": 1}
    delete_unfinished(tmp_path / "missing")
