"""Where a page's token is kept: a file of its owner's alone, the same one at the next start."""

from pathlib import Path

import pytest

from fedappeal.settings.config import ConfigError
from fedappeal.web.token import kept_token, new_token


def test_a_kept_token_is_its_owners_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "page-token"
    token = kept_token(file)
    assert len(token) >= 43
    assert file.stat().st_mode & 0o777 == 0o600
    assert kept_token(file) == token
    assert [path.name for path in tmp_path.iterdir()] == ["page-token"]


def test_a_kept_token_is_closed_to_others_again(tmp_path: Path) -> None:
    file = tmp_path / "page-token"
    token = kept_token(file)
    file.chmod(0o644)
    assert kept_token(file) == token
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 50, b"a" * 129, b"a b" * 20])
def test_a_file_that_holds_no_token_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "page-token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="page-token' holds no token of a page"):
        kept_token(file)
    assert file.read_bytes() == content


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used: No such file"):
        kept_token(tmp_path / "none" / "page-token")


def test_tokens_differ() -> None:
    assert len({new_token() for _ in range(100)}) == 100
