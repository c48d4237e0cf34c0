"""One folder of models and texts for all tests on Hugging Face models."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.hf.tiny import save_model, save_texts, save_tokenizer

if missing := [name for name in ("transformers", "peft") if find_spec(name) is None]:
    pytest.skip(f"needs {' and '.join(missing)}", allow_module_level=True)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data-dir: ``bert`` (pretrained, no classifier), ``gpt2``, ``empty`` (no weights) and ``texts.csv``."""
    folder = tmp_path_factory.mktemp("data")
    save_model(folder / "bert")
    save_model(folder / "gpt2", "GPT2LMHeadModel")
    save_tokenizer(folder / "empty")
    (folder / "empty" / "config.json").write_bytes((folder / "bert" / "config.json").read_bytes())
    save_texts(folder / "texts.csv")
    return folder
