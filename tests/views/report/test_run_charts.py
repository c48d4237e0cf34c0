"""Charts of a run with many rounds or long names: areas for bars, short names on few ticks."""

from typing import Any

import pytest

from fedappeal.protocol.metric import ACCURACY
from fedappeal.record.decisions import pack_decisions
from fedappeal.views.report.charts import LONGEST_NAME, MOST_BARS, clients_chart, decisions_chart, heat_map
from fedappeal.views.report.recorded import MOST_CLIENTS, DecisionGrid, MeasuredClient, participation_of


def decided(rounds: int, clients: int = 2) -> DecisionGrid:
    lines = [
        pack_decisions(n, {f"client-{k:04d}": "joined" if (n + k) % 3 else "sat-out" for k in range(clients)})
        for n in range(1, rounds + 1)
    ]
    found = participation_of(lines)
    assert found is not None
    return found


@pytest.mark.parametrize(("rounds", "kind"), [(MOST_BARS, "bar"), (MOST_BARS + 1, "scatter")])
def test_decisions_of_many_rounds_are_areas(rounds: int, kind: str) -> None:
    chart = decisions_chart(decided(rounds))
    joined, sat_out = chart.figure["data"]
    assert joined["type"] == sat_out["type"] == kind
    assert (joined.get("stackgroup") is not None) == (kind == "scatter")
    assert joined["x"] == list(range(1, rounds + 1))
    assert joined["y"][:3] == [2.0, 1.0, 1.0]
    assert [a + b for a, b in zip(joined["y"], sat_out["y"], strict=True)] == [2.0] * rounds


def axis(figure: Any, name: str) -> Any:
    return figure["layout"][name]


def test_few_names_stand_beside_a_heat_map() -> None:
    found = decided(900, clients=41)  # three rounds a cell
    figure = heat_map(found).figure
    assert len(figure["data"][0]["y"]) == 41
    assert axis(figure, "yaxis")["ticktext"][:2] == ["client-0000", "client-0003"]
    assert axis(figure, "xaxis")["tickvals"] == ["1", "181", "361", "541", "721"]
    many = heat_map(decided(1, clients=801)).figure
    assert many["data"][0]["y"][1] == "client-0003 to client-0005"
    assert axis(many, "yaxis")["ticktext"][1] == "client-0042"


def test_a_long_name_is_cut_beside_the_axis_alone() -> None:
    name = "x" * 80
    chart = clients_chart([MeasuredClient(name, 0.5, 0.9, True)], 3, ACCURACY)
    assert chart is not None
    assert axis(chart.figure, "xaxis")["ticktext"] == ["x" * (LONGEST_NAME - 1) + "…"]
    assert list(chart.figure["data"][0]["x"]) == [name]


def test_of_many_clients_some_are_shown() -> None:
    measured = [MeasuredClient(f"c{n}", 0.5, n / 3000, True) for n in range(2 * MOST_CLIENTS + 1)]
    chart = clients_chart(measured, 3, ACCURACY)
    assert chart is not None
    assert "of which one in 3 is shown" in chart.alt
    assert len(chart.figure["data"][0]["x"]) == 267
