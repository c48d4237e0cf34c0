"""A round's decisions as one short line."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedappeal.protocol.keys import is_client_id
from fedappeal.record.decisions import TO, decisions_of, pack_decisions, unpack_decisions
from fedappeal.record.folder import RunFolder
from fedappeal.record.lines import PARTICIPATION, append_lines
from fedappeal.record.reader import Record, usable_lines
from fedappeal.settings.config import ConfigError

IDS = st.one_of(
    st.integers(0, 10**20).map(str),
    st.integers(0, 20).map(lambda k: f"client-{k:04d}"),
    st.integers(9990, 10_010).map(lambda k: f"client-{k:04d}"),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True),
)
WORDS = st.sampled_from(["joined", "sat-out", "left", "failed", "surplus", "refused", "sad", "a b", "7"])


@given(decisions=st.dictionaries(IDS, WORDS))
def test_what_is_packed_is_unpacked(decisions: dict[str, str]) -> None:
    line = json.loads(json.dumps(pack_decisions(3, decisions)))
    found = unpack_decisions(line)
    assert {each["client-id"]: each["decision"] for each in found} == decisions
    assert len(found) == len(decisions)
    assert all(each["round"] == 3 for each in found)


def test_a_line_as_the_page_shows_it() -> None:
    decisions = {f"client-{k:04d}": "joined" for k in range(100)} | {"client-0099": "sat-out", "anna": "sat-out"}
    line = pack_decisions(7, decisions)
    assert line == {
        "round": 7,
        "asked": ["anna", "client-0000:0099"],
        "decisions": ["sj99s"],
        "legend": {"j": "joined", "s": "sat-out"},
    }
    assert not is_client_id(f"a{TO}b"), "no client-id can be taken for a range"


def test_ranges_go_on_where_ids_become_longer() -> None:
    assert pack_decisions(1, {f"client-{k:04d}": "joined" for k in range(10_100)})["asked"] == [
        "client-0000:9999",
        "client-10000:10099",
    ]


def test_a_decision_takes_little_more_than_a_byte_however_clients_decide() -> None:
    draws = np.random.default_rng(0).integers(0, 3, 10_000)
    words = ["joined", "sat-out", "left"]
    text = json.dumps(pack_decisions(10_000, {f"client-{k:04d}": words[draw] for k, draw in enumerate(draws)}))
    assert len(text) < 1.1 * 10_000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"asked": "client-1"}, "asked = 'client-1' is not allowed"),
        ({"decisions": None}, "decisions = 'None' is not allowed"),
        ({"legend": {"j": 1}}, "legend = .* is not allowed"),
        ({"asked": ["a:1"]}, "is no range of clients"),
        ({"asked": ["c-0:10"]}, "is no range of clients"),
        ({"asked": ["c-5:3"]}, "0 clients were asked"),
        ({"decisions": ["x2"]}, "'x2' is no decision"),
        ({"decisions": ["j3"]}, "2 clients were asked, and 3 decided"),
        ({"decisions": ["j99999999"]}, "2 clients were asked, and 99999999 decided"),
        (
            {"asked": ["c-00000001:99999999"], "decisions": ["j99999999"]},
            "99999999 clients were asked, and 99999999 decided",
        ),
    ],
)
def test_a_damaged_line_is_put_aside_and_the_others_stay(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    file = tmp_path / PARTICIPATION
    whole = pack_decisions(1, {"c-1": "joined", "c-2": "joined"})
    append_lines(file, [whole, {**whole, "round": 2, **change}, {**whole, "round": 3}])
    with pytest.raises(ConfigError, match="line 2: .*" + reason):
        _ = Record(tmp_path).decisions
    (mended,) = RunFolder(tmp_path, "").mend()
    assert re.search(reason, mended)
    participation = Record(tmp_path).participation
    assert [line["round"] for line in participation] == [1, 3]
    assert decisions_of(participation, 3) == {"c-1": "joined", "c-2": "joined"}


def test_a_run_of_an_earlier_version_is_read_as_well(tmp_path: Path) -> None:
    old = {"round": 1, "client-id": "a", "decision": "joined"}
    append_lines(tmp_path / PARTICIPATION, [old, pack_decisions(2, {"a": "left"})])
    assert Record(tmp_path).decisions == [old, {"round": 2, "client-id": "a", "decision": "left"}]
    assert list(RunFolder(tmp_path, "").mend()) == []
    assert decisions_of(Record(tmp_path).participation, 1) == {"a": "joined"}


def test_a_line_whose_keys_are_damaged_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for key, reason in (("round", "it has no 'round'"), ("legend", "it has no 'client-id'")):
        line = pack_decisions(1, {"c-1": "joined"})
        line[key[:-1]] = line.pop(key)
        file = tmp_path / key / PARTICIPATION
        file.parent.mkdir()
        append_lines(file, [line])
        assert usable_lines(file) == ([], [f"line 1: {reason}"])
