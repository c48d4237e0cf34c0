"""What is known of a partition before any data is read."""

import sys

import pytest

from fedappeal.settings.config import ConfigError, TaskSettings
from fedappeal.tasks.partitions.assign import check, check_enough


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedappeal\[data\]'"):
        check(TaskSettings(), 2000, 10)


@pytest.mark.parametrize(
    ("fewest", "examples", "expected"),
    [
        (10, 9, "9 examples are fewer than min-examples = 10"),
        (1, 1, "1 examples are fewer than min-examples = 1 (2 at"),
    ],
)
def test_a_client_needs_enough_examples_of_its_own(fewest: int, examples: int, expected: str) -> None:
    settings = TaskSettings.parse({"min-examples": fewest})
    check_enough(settings, examples + 1)
    with pytest.raises(ConfigError) as caught:
        check_enough(settings, examples)
    assert str(caught.value).startswith(expected)
