"""A model's folder as transformers saves it, as far as it can be read without transformers."""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fedappeal.data.data_size import read_small
from fedappeal.settings.config import ConfigError
from fedappeal.system.packages import require
from fedappeal.tasks.files.data_files import DEFAULT_DATA_DIR

_CONFIG, _TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
_HASHED = (".json", ".txt", ".model", ".safetensors")
_PIECE = 1 << 22
ITS_FILES_ALONE: Mapping[str, bool] = {"local_files_only": True, "trust_remote_code": False}
"""Arguments of transformers' ``from_pretrained``: nothing is downloaded, and a folder's own code does not run."""


def require_hf(*packages: str) -> None:
    """Check that packages of the extra ``hf`` are installed; raises ConfigError."""
    require("Hugging Face models need {}", "hf", *packages)


def inside(data_dir: Path | None, setting: str, value: str) -> Path:
    """Return the path of a file or folder under the data folder.

    Args:
        data_dir: the machine's; None: ``data``.
        setting: which setting names it, for messages.
        value: relative to the data folder.

    Raises:
        ConfigError: not given, outside the data folder, or not there.
    """
    root = data_dir or DEFAULT_DATA_DIR
    if not value:
        raise ConfigError(f"{setting} is missing: a path under data-dir = '{root}'")
    if Path(value).is_absolute() or ".." in Path(value).parts:
        raise ConfigError(f"{setting} = '{value}' is not allowed: a path under data-dir, without '..'")
    if not (root / value).exists():
        raise ConfigError(f"{setting} = '{value}' is not allowed: it is not in data-dir = '{root}'")
    return root / value


class ModelFolder:
    """A folder with ``config.json``, a tokenizer, and weights as safetensors.

    Args:
        path: the folder.
        setting: which setting names it, for messages.
        random_weights: the weights are drawn, so none are needed.
        family: of the model, whose weights are drawn in its usual size; empty: ``config.json`` says it.
    """

    def __init__(self, path: Path, setting: str, random_weights: bool, family: str = "") -> None:
        self.path = path
        self._setting = setting
        self.family = family
        self.random_weights = random_weights or bool(family)

    def refused(self, reason: object) -> ConfigError:
        """Return the error that says what is wrong with the folder, in one line."""
        return ConfigError(f"{self._setting} = '{self.path.name}' is not allowed: {' '.join(str(reason).split())}")

    def check(self) -> None:
        """Check that a model and a tokenizer can be there.

        Raises:
            ConfigError: names what is missing.
        """
        _ = self.config
        if not any(self.path.glob("*token*")) and not any(self.path.glob("vocab*")):
            raise self.refused("it holds no tokenizer (tokenizer.json)")
        if self.random_weights or any(self.path.glob("*.safetensors")):
            return
        if any(self.path.glob("*.bin")):
            raise self.refused("its weights are a pickle, which can hold a program: save it with safetensors")
        raise self.refused("it holds no weights (model.safetensors); random-weights = true draws them")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``.

        Raises:
            ConfigError: it is not there, or cannot be read.
        """
        if self.family:
            return {"model_type": self.family}
        config = self._read(_CONFIG)
        if not isinstance(config.get("model_type"), str):
            raise self.refused(f"its {_CONFIG} names no model_type")
        return config

    def _read(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(read_small(self.path / name))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise self.refused(f"its {name} cannot be read ({reason})") from None
        if not isinstance(content, dict):
            raise self.refused(f"its {name} is no JSON object")
        return content

    @property
    def max_tokens(self) -> int | None:
        """The most tokens that model and tokenizer take; None if neither says."""
        limits = [self.config.get("max_position_embeddings"), self.config.get("n_positions")]
        if (self.path / _TOKENIZER_CONFIG).exists():
            limits.append(self._read(_TOKENIZER_CONFIG).get("model_max_length"))
        try:
            return min((int(most) for most in limits if most), default=None)
        except (TypeError, ValueError, OverflowError):
            raise self.refused(f"its most tokens are no number ({limits})") from None

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classifier's labels, in order; empty without a classifier."""
        names = self.config.get("id2label", {})
        try:
            return tuple(str(names[key]) for key in sorted(names, key=int))
        except (TypeError, ValueError, LookupError):
            raise self.refused("its id2label is no table of numbers and names") from None

    @cached_property
    def content_hash(self) -> str:
        """Hash of the files that make the model and the tokenizer, 16 hex digits."""
        digest = hashlib.blake2b(digest_size=8)
        files = sorted(path for path in self.path.iterdir() if path.suffix in _HASHED and path.is_file())
        for path in files:
            if self.random_weights and path.suffix == ".safetensors":
                continue
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        return digest.hexdigest()

    @cached_property
    def tokenizer(self) -> Any:
        """The folder's tokenizer, which pads on the right.

        Raises:
            ConfigError: it cannot be loaded, or has no token to pad with.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.path, **ITS_FILES_ALONE)  # nosec B615 # no download
        except Exception as error:  # each kind of tokenizer fails in ways of its own
            raise self.refused(f"transformers cannot load its tokenizer: {error}") from None
        tokenizer.padding_side = tokenizer.truncation_side = "right"
        if tokenizer.pad_token is None:
            if tokenizer.eos_token is None:
                raise self.refused("its tokenizer has no token to pad with (pad_token, eos_token)")
            tokenizer.pad_token = tokenizer.eos_token
        vocabulary = self.config.get("vocab_size")
        if vocabulary and len(tokenizer) > vocabulary:
            raise self.refused(f"its tokenizer has {len(tokenizer)} tokens, its model {vocabulary}")
        return tokenizer
