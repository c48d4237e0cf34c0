"""What a run prints: which rounds it calls special, and what its signs mean."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedappeal.cli.view import RunView
from fedappeal.protocol.config import RunConfig, Scalar
from server.run_folder import RunFolder

LINE: dict[str, Any] = {"joined": 1, "sat_out": 0, "left": 0, "seconds": 0.5, "mandatory": True, "decisions": {}}


def printed(columns: int = 100, **settings: Scalar) -> list[str]:
    """The heading, the legend, the columns' names, and two rounds of which the first is mandatory."""
    out = io.StringIO()
    config = RunConfig.parse({"clients": 4, **settings})
    view = RunView(config, Path("runs/here"), Console(file=out, width=columns, highlight=False))
    view.heading()
    for server_round in (1, 2):
        view.watch("round", {**LINE, "round": server_round, "mandatory": server_round == 1})
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({}, "20 rounds (10 mandatory), seed 0"),
        ({"strategy": "fedavg", "rounds": 5, "mandatory_rounds": 2}, "5 rounds (2 mandatory), seed 0"),
        ({"strategy": "fedalign"}, "20 rounds (2 of warm-up), seed 0"),
        ({"strategy": "fedalign", "fedalign.warmup-share": 0.07, "rounds": 100}, "100 rounds (7 of warm-up), seed 0"),
        ({"strategy": "adagd"}, "20 rounds, seed 0"),
        ({"participation": "always"}, "20 rounds, seed 0"),
        ({"strategy": "fedalign", "participation": "appeal"}, "20 rounds (10 mandatory, 2 of warm-up), seed 0"),
    ],
)
def test_mandatory_rounds_are_announced_where_clients_heed_them(settings: dict[str, Scalar], rounds: str) -> None:
    heading, legend, _, first, second = printed(120, **settings)
    assert heading.endswith(f", {rounds}")
    starred = "mandatory" in rounds
    assert ("* clients are asked not to opt out" in legend, "1*" in first) == (starred, starred)
    assert "2*" not in second


@pytest.mark.parametrize("participation", ["auto", "appeal", "match", "defect", "always"])
@pytest.mark.parametrize("clients_per_round", [0, 2])
@pytest.mark.parametrize("strategy", ["maxfl", "fedalign", "adagd", "fedavg"])
def test_the_legend_is_one_line_of_at_most_a_hundred_columns(
    strategy: str, clients_per_round: int, participation: str
) -> None:
    lines = printed(strategy=strategy, clients_per_round=clients_per_round, participation=participation)
    (at,) = (k for k, line in enumerate(lines) if "joined, " in line)
    assert lines[at].endswith(", · not asked")
    assert len(lines[at]) <= 100
    assert ("+ surplus" in lines[at]) == (clients_per_round > 0 and strategy != "fedalign")
    assert ("- refused" in lines[at]) == (strategy == "fedalign")


def test_a_refused_client_is_called_by_its_name() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    view = RunView(RunConfig(), Path("runs/here"), console, name_of={"key-1": "garden-pi (key-1)"}.__getitem__)
    view.watch("event", {"event": "refused", "node": "7", "client": "key-1", "reason": "data is refused: [values]"})
    view.watch("event", {"event": "refused", "node": "8", "reason": "ConfigError: another protocol"})
    assert out.getvalue().splitlines() == [
        "client garden-pi (key-1): data is refused: [values]",
        "a client was refused: ConfigError: another protocol",
    ]


@pytest.mark.parametrize("reason", ["nobody is left", ""])
def test_an_early_end_is_said_with_its_reason(reason: str, tmp_path: Path) -> None:
    RunFolder(tmp_path, "key").event("finished", round=2, reason=reason)
    out = io.StringIO()
    view = RunView(RunConfig(), tmp_path, Console(file=out, width=100, highlight=False))
    view.rounds = [{**LINE, "round": 2, "asked": 2, "bytes_up": 0, "bytes_down": 0}]
    view.summary()
    said = [line for line in out.getvalue().splitlines() if "ended" in line]
    assert said == (["the run ended in round 2: nobody is left"] if reason else [])
