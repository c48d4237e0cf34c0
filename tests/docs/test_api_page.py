"""docs/api.md: its blocks are one program that runs, and its examples have the lines that it says."""

import ast
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fedappeal
from tests.docs.pages import DOCS

PAGE = (DOCS / "api.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
MOST_LINES = 15


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module in which the page's blocks run, in an empty folder."""
    module = ModuleType("page")
    sys.modules["page"] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        yield module
    del sys.modules["page"]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_block_runs_after_those_before_it(number: int, program: ModuleType) -> None:
    code, name = BLOCKS[number].replace("seed=range(5)", "seed=range(2)"), f"<block {number}>"
    linecache.cache[name] = (
        len(code),
        None,
        code.splitlines(keepends=True),
        name,
    )  # as a notebook does for its cells
    exec(compile(code, name, "exec"), vars(program))
    if "comparison.png" in code:
        assert Path("comparison.png").read_bytes()[:4] == b"\x89PNG"


def test_examples_have_the_lines_that_the_page_says() -> None:
    counted = [block for block in BLOCKS if re.match(r"# \d+ lines\n", block)]
    assert len(counted) == 3
    for block in counted:
        lines = [line for line in block.splitlines()[1:] if line.strip()]
        assert f"# {len(lines)} lines" == block.splitlines()[0]
        assert len(lines) <= MOST_LINES


def test_what_the_page_calls_is_there() -> None:
    calls = set(re.findall(r"fedappeal\.([A-Za-z]\w*)", PAGE)) - {"hf", "trained"}
    assert calls <= set(fedappeal.__all__)
    for block in BLOCKS:
        ast.parse(block)
    for name in re.findall(r"`run\.(\w+)", PAGE):
        assert hasattr(fedappeal.Run, name) or name == "path", name
