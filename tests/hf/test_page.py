"""docs/hf.md: its table is the settings, and its commands and files are those of the code."""

import re
import shlex
from itertools import pairwise

from fedappeal.hf import CausalLM, TextClassification
from fedappeal.protocol.config import plugin_settings
from tests.docs.pages import DOCS

PAGE = (DOCS / "hf.md").read_text()


def test_the_table_is_the_settings() -> None:
    rows = re.findall(r"^\| `hf-text\.([a-z-]+)` \| `?([^|`]*?)`? \|", PAGE, re.MULTILINE)
    defaults = {key: str(value) for key, value in TextClassification.Settings.parse({}).as_config().items()}
    assert dict(rows) == {
        key: value.lower() if value in ("True", "False") else value or "empty" for key, value in defaults.items()
    }
    assert set(CausalLM.Settings.keys()) == set(defaults) - {"labels", "label-column"}


def test_the_commands_settings_are_there() -> None:
    command = next(line for line in PAGE.splitlines() if line.startswith("fedappeal simulate"))
    words = shlex.split(command)
    given = plugin_settings(" ".join(value for flag, value in pairwise(words) if flag == "--set"))
    own = {key.removeprefix("hf-text."): value for key, value in given.items()}
    assert TextClassification.Settings.parse(own).as_config()["labels"] == "bad,good"
