"""Decisions counted in cells: against hand counts, and against the line of each decision."""

import numpy as np
import pytest

from fedappeal.record.decisions import clients_of, pack_decisions
from fedappeal.views.report import recorded
from fedappeal.views.report.recorded import MOST, participation_of

SMALL = [
    pack_decisions(1, {"client-2": "joined", "client-10": "sat-out"}),
    pack_decisions(2, {"client-10": "left"}),
    pack_decisions(4, {"client-2": "joined", "client-10": "joined"}),
]


def test_each_cell_is_a_client_in_a_round() -> None:
    found = participation_of(SMALL)
    assert found is not None
    assert found.single
    assert found.clients == ("client-2", "client-10")
    assert found.rounds == (1, 2, 4)
    assert found.decisions == ("joined", "left", "sat-out")
    assert found.counts.tolist() == [[[1, 0, 1], [0, 0, 1]], [[0, 0, 0], [0, 1, 0]], [[0, 0, 0], [1, 0, 0]]]
    expected = [[1.0, np.nan, 1.0], [0.0, 0.0, 1.0]]
    np.testing.assert_array_equal(found.joined_share, expected)


def test_a_line_a_decision_reads_the_same() -> None:
    lines = [
        {"round": 1, "client-id": "client-2", "decision": "joined"},
        {"round": 1, "client-id": "client-10", "decision": "sat-out"},
        {"round": 2, "client-id": "client-10", "decision": "left"},
        {"round": 4, "client-id": "client-2", "decision": "joined"},
        {"round": 4, "client-id": "client-10", "decision": "joined"},
    ]
    one, other = participation_of(SMALL), participation_of(lines)
    assert one is not None
    assert other is not None
    assert one.counts.tolist() == other.counts.tolist()
    assert (one.clients, one.rounds) == (other.clients, other.rounds)


def test_many_clients_and_rounds_share_cells() -> None:
    draw = np.random.default_rng(0)
    clients, rounds = 2 * MOST + 3, MOST + 1
    joined = draw.random((clients, rounds)) < 0.3
    lines = [
        pack_decisions(r + 1, {f"c-{k:04d}": "joined" if joined[k, r] else "sat-out" for k in range(clients)})
        for r in range(rounds)
    ]
    found = participation_of(lines)
    assert found is not None
    assert not found.single
    rows, columns = -(-clients // 3), -(-rounds // 2)  # three clients and two rounds a cell, the last ones fewer
    assert found.counts.shape == (2, rows, columns)
    assert (found.clients[1], found.last_clients[1], found.last_clients[-1]) == ("c-0003", "c-0005", "c-0802")
    assert (found.rounds[1], found.last_rounds[1], found.last_rounds[-1]) == (3, 4, rounds)
    assert found.counts[0, 5, 7] == joined[15:18, 14:16].sum()
    assert found.counts[0].sum() == joined.sum()
    assert found.counts.sum() == joined.size


def test_without_a_client_there_is_nothing() -> None:
    assert participation_of([]) is None
    assert participation_of([pack_decisions(1, {})]) is None


@pytest.mark.parametrize(
    "line",
    [
        {"round": 1, "asked": ["c-1:9"], "decisions": ["j3"], "legend": {"j": "joined"}},
        {"round": 1, "client-id": "a"},
        {"round": "1", "client-id": "a", "decision": "joined"},
    ],
)
def test_a_damaged_line_is_said(line: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"decided|no decision"):
        participation_of([line])


def test_what_no_run_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (recorded.MOST_DECIDED, recorded.MOST_WORDS) == (1_000_000, 32)
    monkeypatch.setattr(recorded, "MOST_DECIDED", 4)
    lines = [
        pack_decisions(1, {"client-2": "joined", "client-10": "joined"}),
        pack_decisions(2, {"a": "joined", "b": "joined"}),
    ]
    assert participation_of(lines) is not None
    with pytest.raises(ValueError, match=r"^more than 4 clients or 32 decisions$"):
        participation_of([*lines, pack_decisions(3, {"c": "joined"})])
    words = [pack_decisions(number, {"a": f"word-{number}"}) for number in range(1, 34)]
    assert participation_of(words[:32]) is not None
    with pytest.raises(ValueError, match=r"^more than 4 clients or 32 decisions$"):
        participation_of(words)


def test_many_clients_are_refused_before_all_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[object] = []

    def counted(ranges: tuple[str, ...]) -> list[str]:
        listed.append(ranges)
        return clients_of(ranges)

    monkeypatch.setattr(recorded, "MOST_DECIDED", 4)
    monkeypatch.setattr(recorded, "clients_of", counted)
    lines = [pack_decisions(number, {f"{number}-client-{k}": "joined" for k in range(3)}) for number in range(1, 50)]
    with pytest.raises(ValueError, match=r"^more than 4 clients"):
        participation_of(lines)
    assert len(listed) == 2


def test_clients_that_join_a_mandatory_round_join_on_request() -> None:
    lines = [{"round": n, "client-id": c, "decision": d} for n in (1, 2) for c, d in (("a", "joined"), ("b", "left"))]
    found = participation_of(lines, mandatory={1})
    assert found is not None
    assert found.decisions == ("joined", "left", "on-request")
    assert found.counts.sum(axis=1).tolist() == [[0, 1], [1, 1], [1, 0]]
    assert found.joined_share.tolist() == [[1.0, 1.0], [0.0, 0.0]]
