"""``python -m benchmarks ROW...``: measures rows and prints a table each; without a row, their names.

A name that ends before a slash stands for all rows that begin so: ``simulation`` for ``simulation/mlp`` and others.
``--before CHECKOUT`` measures every arm with the code of another checkout, too, in turn with ours, such as one that
``git worktree add CHECKOUT COMMIT`` made. ``--peers CHECKOUT`` measures pfl-research and fluke, too, by the programs
of commit c73b908, with ``benchmarks/peers/requirements.txt`` installed in the checkout's ``.venv``. ``--small`` tries
a row: its figures say nothing.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks import deployment, influence, simulation
from benchmarks.runner import ROOT, SMALL, BenchRow, machine_facts, measure, table

ROWS: dict[str, BenchRow] = {}
for module in (simulation, deployment, influence):
    ROWS |= module.ROWS


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--json", type=Path, help="file for the figures; written after each repetition")
    parser.add_argument("--repetitions", type=int, default=0, help="of each arm; 0: the row's own")
    parser.add_argument("--rounds", type=int, default=0, help="of each run; 0: the row's own")
    parser.add_argument("--small", action="store_true", help="one repetition of few rounds, with sizes a fiftieth")
    parser.add_argument("--arms", default="", help="which, by semicolons; empty: all")
    parser.add_argument("--before", type=Path, help="a checkout of other code, measured in turn with this one")
    parser.add_argument(
        "--peers", type=Path, help="a checkout of commit c73b908, which has the arms of other packages"
    )
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.arm:
        print(json.dumps(ROWS[chosen.rows[0]].arms[chosen.arm](chosen.rounds)))
        return
    names = [name for name in ROWS if any(name == row or name.startswith(f"{row}/") for row in chosen.rows)]
    if not names:
        parser.exit(2 if chosen.rows else 0, "\n".join(["rows:", *ROWS]) + "\n")
    if chosen.small:
        os.environ[SMALL] = "1"
        chosen.repetitions, chosen.rounds = 1, chosen.rounds or 3
    if chosen.peers and chosen.before:
        parser.error("--peers is not allowed with --before: the peers are not other code of ours")
    if chosen.peers:
        os.environ[simulation.PEERS] = str(chosen.peers.resolve())
    left_out = () if chosen.peers else simulation.PROGRAMS
    trees = {"": ROOT, **({", before": chosen.before.resolve()} if chosen.before else {})}
    report: dict[str, Any] = {}
    for name in names:
        row = ROWS[name]
        arms = [arm for arm in row.arms if arm not in left_out and (not chosen.arms or arm in chosen.arms.split(";"))]
        repetitions, rounds = chosen.repetitions or row.repetitions, chosen.rounds or row.rounds
        for runs in measure(name, row, arms, trees, repetitions, rounds):
            report[name] = runs
            if chosen.json:
                chosen.json.write_text(json.dumps({**machine_facts(), "rows": report}, indent=2) + "\n", "utf-8")
        table(name, row, report[name])


if __name__ == "__main__":
    main()
