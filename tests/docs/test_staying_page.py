"""docs/staying.md: each behaviour, and an example that works."""

import re
import sys
from pathlib import Path

import pytest

from client.participation.behaviour import Behaviour, compose
from client.participation.policies import Always
from fedappeal.core.registry import POLICIES

PAGE = (Path(__file__).parents[2] / "docs" / "staying.md").read_text()


def test_the_page_names_each_behaviour() -> None:
    names = {name for name in POLICIES.built_in if issubclass(POLICIES.load(name), Behaviour)}
    assert names <= set(re.findall(r"`([a-z]+)`", PAGE.partition("## Behaviours")[2]))


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n# mine/weekends.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine_weekends.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    policy = compose([Always(), POLICIES.load("mine_weekends:Weekends")()])
    assert [day for day in range(1, 15) if policy.available(0, "a", day)] == [6, 7, 13, 14]
