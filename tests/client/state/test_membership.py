"""What a device keeps of its federation, where a person has changed the file."""

from pathlib import Path

import pytest

from client.state.membership import Membership
from fedappeal.settings.config import ConfigError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("data = 'x'", "cannot be read: KeyError('superlink')"),
        ("superlink = 'a:1'\ndata = 5", "data = 5 in "),
        ("superlink = 'a:1'\nallow = ['x']", "allow = ['x'] in "),
        ("superlink = 5", "superlink = 5 in "),
        ("superlink = 'a:1'\ndata = " + "[" * 10_000, "cannot be read: "),
    ],
)
def test_a_file_that_is_wrong_is_one_line(options: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(f"name = 'n'\nfingerprint = 'f'\n[client]\n{options}\n")
    with pytest.raises(ConfigError) as refused:
        Membership.read(tmp_path)
    assert expected in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
