"""OpenMP's threads sleep while they wait, wherever the command loads PyTorch."""

import os
import subprocess
import sys

import pytest

# OpenMP reads its settings when its library is loaded: by PyTorch, which takes longer.
CODE = """
import ctypes, importlib.util, sys
from pathlib import Path
from fedappeal.cli.main import main
sys.argv = ["fedappeal", "list"]
try:
    main()
except SystemExit:
    [library] = Path(importlib.util.find_spec("torch").origin).parent.glob("lib/libgomp*")
    ctypes.CDLL(str(library))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP tells what it has read")
@pytest.mark.parametrize(("given", "spins"), [({}, 0), ({"OMP_WAIT_POLICY": "active"}, 30_000_000_000)])
def test_openmp_has_read_that_its_threads_sleep_and_leaves_an_owners_choice(
    given: dict[str, str], spins: int
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **given}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, timeout=120)
    # Its policy is called passive where none was read, too; then a thread spins 300,000 times before it sleeps.
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
