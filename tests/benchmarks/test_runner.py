"""The benchmarks: medians, ratios, parts and attacks by hand, and the rows that docs name."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import simulation
from benchmarks.__main__ import ROWS
from benchmarks.influence import Attack, attack, under_attack
from benchmarks.runner import SMALL, BenchRow, Clock, Figures, row_size, table
from strategies.rounds.exchange.members import Member

DOCS = Path(__file__).parents[2] / "docs"


def test_a_ratio_is_the_median_of_the_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    """Medians within a run: 2, 4 and 9 over 1, 4 and 3. Pairs: 2, 1 and 3."""
    runs: dict[str, list[Figures]] = {
        "ours": [{"s": [1.0, 2.0, 3.0]}, {"s": [4.0]}, {"s": [9.0], "takes": "layers"}],
        "plain": [{"s": 1.0}, {"s": 4.0}, {"s": 3.0}],
    }
    table("a row", BenchRow({}, "plain", "s"), runs)
    lines = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["a row", "s", "takes", "s over plain"],
        ["ours", "4", "layers", "2.00 (1.00 to 3.00)"],
        ["plain", "3", "1.00 (1.00 to 1.00)"],
    ]


def test_the_first_part_is_the_start_and_the_last_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, used = iter([0.0, 5.0, 6.0, 8.0, 20.0]), iter([0.0, 3.0, 3.5, 4.5, 9.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(time, "process_time", lambda: next(used))
    clock = Clock()
    for _ in range(4):
        clock.mark()
    assert clock.rounds() == {"s": [1.0, 2.0], "CPU s": [0.5, 1.0], "start s": 5.0, "start CPU s": 3.0}


def test_sizes_are_a_fiftieth_where_rows_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SMALL, raising=False)
    assert [row_size(size) for size in (5, 100, 1000)] == [5, 100, 1000]
    monkeypatch.setenv(SMALL, "1")
    assert [row_size(size) for size in (5, 100, 1000)] == [5, 10, 20]


def test_attackers_send_what_their_formulas_say() -> None:
    honest, update = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]), np.array([0.0, 2.0])
    ahead = np.array([0.0, 1.0])
    assert attack("flip", update, honest, None).tolist() == [0.0, -3.8]
    assert attack("ipm", update, honest, None) == pytest.approx([-3.8, 0.0])
    assert attack("alie", update, honest, None) == pytest.approx([2 - 1.5 * (2 / 3) ** 0.5, 0.0])
    for name, degrees, length in (("known", 87, 2.0), ("long", 87, 3.8), ("steep", 73, 2.0)):
        update_sent = attack(name, update, honest, ahead)
        assert np.linalg.norm(update_sent) == pytest.approx(length)
        assert update_sent @ ahead / length == pytest.approx(np.cos(np.deg2rad(degrees)), abs=0.01)
    assert attack("still", update, honest, ahead).tolist() == [0.02, 0.0]


@pytest.mark.parametrize(
    ("strategy", "claim", "key", "expected"),
    [
        ("maxfl", 1.95, "appeal-weight", 0.195),
        ("maxfl", 9.0, "appeal-weight", 0.25),
        ("fedavg", 1.95, "num-examples", 39),
    ],
)
def test_attackers_claim_multiples_of_the_honest_median(
    strategy: str, claim: float, key: str, expected: float
) -> None:
    kind = under_attack(strategy, Attack("known", "", claim), frozenset({3}))
    honest = {"appeal-weight": [0.1, 0.2, 0.05], "num-examples": [20, 10, 30]}[key]
    sent = [{key: value, "loss": 2.0} for value in [*honest, 1]]
    senders = [(Member(f"client-000{k}", k), metrics) for k, metrics in enumerate(sent)]
    liar = kind.__new__(kind)
    liar.round = SimpleNamespace(carry=None)
    liar._claim(senders)
    assert [metrics[key] for metrics in sent] == [*honest, pytest.approx(expected)]
    liar.round = SimpleNamespace(carry=SimpleNamespace(told=0.5))
    liar._claim(senders)
    assert [metrics["loss"] for metrics in sent] == [2.0, 2.0, 2.0, 0.5], "FedALIGN takes in who claims F(w)"


def test_a_row_that_is_like_another_has_its_settings_and_its_own() -> None:
    papers, default = (simulation.settings_of(f"evaluation/{name}") for name in ("papers", "default"))
    assert default == {**papers, "judge-on": "cross-fitted", "adaptation-steps": 5}
    assert (papers["judge-on"], papers["adaptation-steps"], papers["clients"]) == ("train", 0, 100)
    assert simulation.settings_of("many-clients/default") == {**default, "min-examples": 10}


@pytest.mark.parametrize("peers", [[], ["--peers", "../peers"]])
def test_other_packages_are_measured_where_their_checkout_is_named(
    peers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def measure(name: str, row: BenchRow, arms: list[str], *_: object) -> Iterator[dict[str, list[Figures]]]:
        measured.extend(arms)
        yield {}

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setenv(simulation.PEERS, "")
    monkeypatch.setattr(sys, "argv", ["benchmarks", "simulation/mlp", *peers])
    command.main()
    assert {"batched", "plain-loop"} <= set(measured)
    assert (set(simulation.PROGRAMS) <= set(measured)) is bool(peers)


def test_docs_name_rows_that_are_there() -> None:
    pages = (DOCS / f"{name}.md" for name in ("benchmarks", "influence"))
    text = "".join(page.read_text() for page in pages)
    commands = re.findall(r"python -m benchmarks (?!ROW\b)([\w/-]+)", text)
    assert {"simulation", "deployment", "influence"} <= set(commands), "each page names rows"
    for name in commands:
        assert any(row == name or row.startswith(f"{name}/") for row in ROWS), name
    assert all(row.over in ("", *row.arms) for row in ROWS.values())
