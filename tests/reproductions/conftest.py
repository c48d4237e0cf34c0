"""Every experiment's short form takes minutes together: `make test-reproduce` asks for it."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "reproduce" in config.getoption("markexpr"):
        return
    for item in items:
        if item.get_closest_marker("reproduce"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: make test-reproduce"))
