"""Who stays by default: the numbers of docs/staying.md, a run a row of `--out`, which is continued where it is.

python -m benchmarks.staying report --out staying.jsonl    seeds 21 to 30: the page's tables
python -m benchmarks.staying pooled --out pooled.jsonl     what one model for all data could reach
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.resumed import resumed
from fedappeal.settings.config import RunConfig
from fedappeal.system.versions import recorded_versions
from fedappeal.views.comparison.statistics import Interval
from fedappeal.views.comparison.stayed import WhoStayed

Settings = Mapping[str, Any]

SEEDS = range(21, 31)

PEOPLE = {"min-examples": 50}
TASKS: Mapping[str, Settings] = {
    "fmnist": {"task": "fmnist", "clients": 20},
    "digits": {"task": "digits", "clients": 10},
    "chem97": {"task": "chem97", "clients": 20, **PEOPLE},
    "debian": {"task": "debian", "clients": 20, "learning-rate": 2.0, "solo.learning-rate": 2.0, **PEOPLE},
}
ARMS: Mapping[str, Settings] = {
    "FedAvg": {"strategy": "fedavg"},
    "MaxFL": {"strategy": "maxfl"},
    "FedAvg, judged as sent": {"strategy": "fedavg", "adaptation-steps": 0},
    "FedAvg, judged by training loss": {"strategy": "fedavg", "judge-on": "train"},
    "FedAvg, all always join": {"strategy": "fedavg", "participation": "always"},
    "the same, nothing held out": {"strategy": "fedavg", "participation": "always", "judge-on": "train"},
}
SCARCE: Settings = {
    **{"task": "fmnist", "clients": 40, "partition": "dirichlet-clusters", "min-examples": 50},
    **{"max-train-examples": 300, "flip-share": 0.3, "rounds": 50, "on-empty-round": "keep", "goodwill": -1},
    **{"solo.steps": 40, "solo.learning-rate": 0.05, "learning-rate": 0.05, "local-steps": 5, "evaluate-every": 5},
}
"""The setting of `fedappeal reproduce volunteers`: three clients in ten have flipped labels; goodwill is scarce."""
SCARCE_ARMS: Mapping[str, Settings] = {
    f"{name}, {what}": {"strategy": strategy, **how}
    for what, how in (
        ("held-out data, 9 rounds of goodwill", {"mandatory-rounds": 9}),
        ("training loss, 20 rounds of goodwill", {"mandatory-rounds": 20, "judge-on": "train"}),
    )
    for name, strategy in (("FedAvg", "fedavg"), ("FedAdam", "fedadam"), ("MaxFL", "maxfl"))
}


def report_rows() -> Iterator[dict[str, Any]]:
    """Yield the runs of the report: table, arm and settings of each."""
    tables = {"scarce goodwill": (SCARCE, SCARCE_ARMS)}
    tables |= {name: ({**task, "rounds": 60}, ARMS) for name, task in TASKS.items()}
    for name, (shared, arms) in tables.items():
        for arm, settings in arms.items():
            for seed in SEEDS:
                yield {"table": name, "arm": arm, "settings": {**shared, **settings, "seed": seed}}


def pooled_rows() -> Iterator[dict[str, Any]]:
    """Yield the pooled models: table, arm and seed of each."""
    for task, seed, rate in product(("chem97", "debian"), (21, 22), (0.1, 0.5, 2.0)):
        yield {"table": f"{task}, pooled", "arm": f"rate {rate:g}", "seed": seed}


def run(row: dict[str, Any]) -> dict[str, Any]:
    """Simulate a run; return what came out."""
    from fedappeal.runs.plan import RunPlan
    from fedappeal.simulation.engine import simulate
    from fedappeal.simulation.options import Simulation
    from server.build import check_settings

    config = RunConfig.parse(row["settings"])
    check_settings(config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        simulate(config, RunPlan.of(config, path).folder({}), Simulation(threads=1, resumable=False))
        who = WhoStayed.of(path)
    figures = {name: getattr(who, name) for name in ("willing", "served", "score", "used", "asked")}
    return {**figures, "versions": recorded_versions()}


def pooled(row: dict[str, Any]) -> dict[str, float]:
    """Train one model on all clients' training data; return the share of clients whose requirement it meets."""
    import numpy as np
    import torch
    from flwr.app import RecordDict

    from client.participant import Participant
    from client.settings import NodeSettings
    from client.state.store import ContextStore
    from client.training.models import arrays_of
    from strategies.fedavg import FedAvg

    torch.set_num_threads(1)
    task, seed, rate = row["table"].split(",")[0], row["seed"], float(row["arm"].split()[1])
    config = RunConfig.parse({**TASKS[task], "strategy": "fedavg", "seed": seed})
    clients = [
        Participant(config, NodeSettings(partition_id=k), ContextStore(RecordDict())) for k in range(config.clients)
    ]
    initial = arrays_of(clients[0].equipment.initial)
    needs = [client.begin_run("pooled", initial) for client in clients]
    x, y = (torch.cat([getattr(client.data.train, name) for client in clients]) for name in ("x", "y"))
    model, draws = clients[0].model, np.random.default_rng(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in initial.items()})
    best = {"as sent": 0.0, "as used": 0.0}
    for number in range(1, 301):
        model.train()
        for _ in range(30):
            rows = torch.from_numpy(draws.integers(len(y), size=32 * config.clients))
            optimiser.zero_grad()
            clients[0].task.loss(model(x[rows]), y[rows]).backward()
            optimiser.step()
        if number % 10:
            continue
        arrays = arrays_of(model)
        for how, use in (("as sent", None), ("as used", clients[0].use_of(FedAvg()))):
            judged = [each.judge(arrays, f"{number}", each.judged_split, adaptation=use) for each in clients]
            best[how] = max(best[how], fmean(need.met(one) for need, one in zip(needs, judged, strict=True)))
        model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    return best


def table(rows: list[dict[str, Any]]) -> None:
    """Print the means over the seeds, with 95 % intervals of who stayed, as Markdown."""
    columns = ("stayed %", "seeds under 20 %", "served %", "metric, as sent", "as used", "asked rounds")
    for name in dict.fromkeys(row["table"] for row in rows):
        print(f"\n**{name}**\n\n| | seeds | {' | '.join(columns)} |\n|---|{'---|' * (len(columns) + 1)}")
        for arm in dict.fromkeys(row["arm"] for row in rows if row["table"] == name):
            of_arm = [row for row in rows if (row["table"], row["arm"]) == (name, arm)]
            values = {key: [row[key] for row in of_arm if row[key] is not None] for key in ("willing", *_SHOWN)}
            stayed = Interval.of([100 * value for value in values["willing"]])
            half = "" if stayed.half is None else f" ± {stayed.half:.0f}"
            frozen = sum(value < 0.2 for value in values["willing"])
            shown = [f"{scale * fmean(values[key]):.1f}" if values[key] else "-" for key, scale in _SHOWN.items()]
            print(f"| {arm} | {len(of_arm)} | {stayed.mean:.0f}{half} | {frozen} | {' | '.join(shown)} |")


_SHOWN = {"served": 100, "score": 100, "used": 100, "asked": 1}


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["report", "pooled"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.part == "report":
        table(resumed(given.out, report_rows(), run, given.jobs))
    else:
        print(*map(json.dumps, resumed(given.out, pooled_rows(), pooled, given.jobs)), sep="\n")


if __name__ == "__main__":
    main()
