"""What `import fedappeal` gives, and what it loads."""

import sys
from pathlib import Path

import pytest

import fedappeal
from tests.test_imports import loaded


def test_every_exported_name_is_there() -> None:
    assert all(getattr(fedappeal, name) is not None for name in fedappeal.__all__)
    assert set(fedappeal.__all__) == set(fedappeal._NAMES)


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ("torch", "flwr", "pandas", "numpy", "rich", "matplotlib", "fedappeal.api")
    assert loaded("import fedappeal", *heavy) == "[]"
    code = "import fedappeal\nfedappeal.simulate, fedappeal.load, fedappeal.sweep, fedappeal.compare"
    assert loaded(code, "pandas", "matplotlib", "datasets", "flwr_datasets", "sklearn") == "[]"


def test_without_pandas_a_data_frame_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    said = r"^data frames and LaTeX need pandas: pip install 'fedappeal\[frames\]'$"
    with pytest.raises(fedappeal.ConfigError, match=said):
        _ = fedappeal.Run(Path("run")).history
