"""The built wheel in a clean environment, with the extras that the notebook names, runs the notebook.

Needs packages from an index, so it is asked for: ``make test-wheel``.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_notebook import NOTEBOOK, shown

pytestmark = pytest.mark.skipif(
    not os.environ.get("FEDAPPEAL_WHEEL_TESTS"), reason="make test-wheel builds and installs the wheel"
)
TO_RUN_IT = ("nbclient", "ipykernel")
"""What a notebook's user has besides."""
KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "UV_CACHE_DIR",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "PIP_INDEX_URL",
    "SSL_CERT_FILE",
)


def run(*words: str | Path, folder: Path, **environment: str) -> str:
    """Run a command that sees nothing of this environment; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name in KEPT} | environment
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> Path:
    beside = Path(sys.executable).with_name("uv")
    return beside if beside.exists() else Path(shutil.which("uv") or "uv")


@pytest.fixture(scope="module")
def wheel(uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(uv, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT, folder=folder)
    (built,) = folder.glob("fedappeal-*.whl")
    return built


def test_the_wheel_says_that_its_packages_have_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in ("fedappeal", "client", "server", "strategies")} <= set(names)


@pytest.mark.timeout(1800)
def test_the_notebook_runs_from_the_wheel_and_shows_what_is_stored(wheel: Path, uv: Path, tmp_path: Path) -> None:
    (extras,) = set(re.findall(r"pip install \\\"(fedappeal\[[\w,]+\])\\\"", NOTEBOOK.read_text()))
    python = tmp_path / "venv" / "bin" / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", folder=tmp_path)
    install = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / "requirements.txt"]
    run(*install, f"{extras} @ {wheel.as_uri()}", *TO_RUN_IT, folder=tmp_path)
    folder = tmp_path / "empty"
    folder.mkdir()
    script = shutil.copy(Path(__file__).with_name("run_notebook.py"), tmp_path)
    where = run(python, "-c", "import fedappeal; print(fedappeal.__file__)", folder=folder)
    assert where.startswith(str(tmp_path / "venv"))
    ran = tmp_path / "ran.ipynb"
    printed = run(python, script, NOTEBOOK, folder, ran, folder=folder, OMP_NUM_THREADS="1")
    assert re.search(r"^\d+ cells ran$", printed, re.MULTILINE)
    assert [path.name for path in folder.iterdir()] == ["runs"]
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["first", "own", "sweep", "table"]
    assert shown(ran) == shown(NOTEBOOK)
