"""What a stream cannot encode is written in plainer characters."""

import io
import sys
from typing import Any

import pytest

from fedappeal.cli.main import main
from fedappeal.system.encodable import write_encodable


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("utf-8", "●○×· Köln 北 ±1 ?"),
        ("cp1252", "#o×· Köln ? ±1 ?"),
        ("latin-1", "#o×· Köln ? ±1 ?"),
        ("ascii", "#ox. Koln ? ?1 ?"),
        ("cp437", "#ox· Köln ? ±1 ?"),
    ],
)
def test_each_character_is_one_that_the_stream_can_encode(encoding: str, written: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    write_encodable(stream)
    stream.write("●○×· Köln 北 ±1 \udcff")
    stream.flush()
    assert stream.buffer.getvalue().decode(encoding) == written  # type: ignore[attr-defined]


def test_a_stream_that_has_a_way_of_its_own_keeps_it() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="ignore")
    write_encodable(stream)
    assert stream.errors == "ignore"


def test_a_commands_rounds_are_shown_where_the_output_is_no_utf_8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252", write_through=True))
    settings = "--clients 3 --rounds 1 --local-steps 1 --set solo.steps=1 --model logistic --strategy fedavg"
    monkeypatch.setattr(sys, "argv", ["fedappeal", "simulate", *settings.split(), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    lines = raw.getvalue().decode("cp1252").splitlines()
    assert any(line.startswith("###") for line in lines), lines
