"""`--against STRATEGY`: the same clients under another strategy, in this process, and who stayed under each."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedappeal.runs.launch.in_process import simulate_plan
from fedappeal.runs.plan import RunPlan
from fedappeal.settings.config import ConfigError
from fedappeal.settings.rounds import AUTO
from fedappeal.simulation.options import Simulation
from fedappeal.views.comparison.measures import save
from fedappeal.views.comparison.stayed import NOTE, WhoStayed, draw, headings
from fedappeal.views.terminal.shown import as_json, complain, line_of, say

PICTURE = "stayed"
"""The picture's files in the run's folder, without their endings."""


def plan_against(plans: Sequence[RunPlan], strategy: str) -> RunPlan:
    """Return the same run under another strategy; clients keep the policy that they have.

    Args:
        plans: the runs, of which there may be one.
        strategy: the other one.

    Raises:
        ConfigError: for several runs, the run's own strategy, or one that does not go with the settings.
    """
    if len(plans) > 1:
        raise ConfigError(f"against = '{strategy}' is not allowed with several runs: `fedappeal compare` shows them")
    plan, config = plans[0], plans[0].config
    if strategy == config.strategy:
        raise ConfigError(f"against = '{strategy}' is not allowed: it is the run's own strategy; name another")
    policy = plan.plugins.strategy.policy if config.participation == AUTO else config.participation
    other = config.model_copy(update={"strategy": strategy, "participation": policy, "out": ""})
    return RunPlan.of(other, plan.path / f"against-{strategy.replace(':', '.')}", data_dir=plan.data_dir)


def show_against(path: Path, other: RunPlan, device: str, threads: int = 0) -> None:
    """Simulate the other strategy, and show who stayed under each: a table, and a picture in the run's folder.

    Args:
        path: the run's folder.
        other: the other run.
        device: where it trains.
        threads: its PyTorch threads; 0: as PyTorch has it.
    """
    console = Console(highlight=False)
    with console.status(f"the same clients under {other.config.strategy}"):
        simulate_plan(other, Simulation(device=device, data_dir=other.data_dir, threads=threads, resumable=False))
    runs = [WhoStayed.of(folder) for folder in (path, other.path)]
    names = headings(runs[0].metric)
    if as_json():
        for run, place in zip(runs, (path, other.path), strict=True):
            said = " ".join(f"{name.replace(' ', '_')}={cell}" for name, cell in zip(names, run.row(), strict=True))
            say(console, said, facts={"event": "stayed", "run": place.name})
    else:
        table = Table(title="who stayed: the same clients, the same data, the same draws", title_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == names[0] else "right")
        for run in runs:
            table.add_row(*map(line_of, run.row()))
        console.print(table)
        say(console, NOTE, style="dim", soft_wrap=False)
    if not all(run.rounds.size for run in runs):
        return
    try:
        save(draw(runs), path / PICTURE)
    except ConfigError as error:  # without matplotlib the table has to do
        complain(error)
        return
    say(console, "the picture: ", (str(path / f"{PICTURE}.png"), "bold"))
