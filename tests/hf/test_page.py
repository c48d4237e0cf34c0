"""docs/hf.md: its settings, commands and files are those of the code."""

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedappeal.hf import CausalLM, TextClassification
from fedappeal.settings.config import plugin_settings
from tests.docs.pages import DOCS

PAGE = (DOCS / "hf.md").read_text()


def test_the_settings_of_both_tasks_are_those_of_the_reference() -> None:
    text, reference = set(TextClassification.Settings.keys()), (DOCS / "reference.md").read_text()
    assert set(re.findall(r"^\| `hf-text\.([a-z-]+)` \|", reference, re.MULTILINE)) == text
    assert set(re.findall(r"`hf-text\.([a-z-]+)`", PAGE)) <= text
    assert set(CausalLM.Settings.keys()) == text - {"labels", "label-column"}


def test_the_commands_settings_are_there() -> None:
    command = next(line for line in PAGE.splitlines() if line.startswith("fedappeal simulate"))
    words = shlex.split(command)
    given = plugin_settings(" ".join(value for flag, value in pairwise(words) if flag == "--set"))
    own = {key.removeprefix("hf-text."): value for key, value in given.items()}
    assert TextClassification.Settings.parse(own).as_config()["labels"] == "bad,good"


def test_the_program_runs_in_fifteen_lines(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = next(
        block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "Logits" in block
    )
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15
    shutil.copytree(data / "bert", tmp_path / "data" / "bert")
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(program, found)
    adapters = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    assert sum("lora_" in name for name in adapters) == 8  # two matrices for query and value of each of two layers
    assert any("lora_B" in name and array.any() for name, array in adapters.items())  # B is zero before training
