"""`--against STRATEGY`: the same clients under another strategy, in this process, and who stayed under each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.settings.participation import AUTO
from fedappeal.simulation.engine import Simulation, simulate
from fedappeal.views.comparison.figures import save
from fedappeal.views.comparison.stayed import NOTE, WhoStayed, draw, headings
from fedappeal.views.terminal.shown import as_json, complain, line_of, say
from server.build import check_settings, chosen
from server.new_run import new_run

PICTURE = "stayed"
"""The picture's files in the run's folder, without their endings."""


def config_against(configs: Sequence[RunConfig], strategy: str) -> RunConfig:
    """Return the settings of the same run under another strategy; clients keep the policy that they have.

    Args:
        configs: of the runs, of which there may be one.
        strategy: the other one.

    Raises:
        ConfigError: for several runs, the run's own strategy, or one that does not go with the settings.
    """
    if len(configs) > 1:
        raise ConfigError(f"against = '{strategy}' is not allowed with several runs: `fedappeal compare` shows them")
    config = configs[0]
    if strategy == config.strategy:
        raise ConfigError(f"against = '{strategy}' is not allowed: it is the run's own strategy; name another")
    policy = chosen(config).strategy.policy if config.participation == AUTO else config.participation
    other = config.model_copy(update={"strategy": strategy, "participation": policy, "out": ""})
    check_settings(other)
    return other


def show_against(path: Path, config: RunConfig, how: Mapping[str, Any]) -> None:
    """Simulate the other strategy, and show who stayed under each: a table, and a picture in the run's folder.

    Args:
        path: the run's folder.
        config: the settings of the other run.
        how: of `Simulation`: device, data_dir.
    """
    console, folder = Console(highlight=False), path / f"against-{config.strategy.replace(':', '.')}"
    simulation = Simulation(resumable=False, **how)
    with console.status(f"the same clients under {config.strategy}"):
        simulate(config, new_run(folder, config, simulation.runtime()), simulation)
    runs = [WhoStayed.of(each) for each in (path, folder)]
    names = headings(runs[0].metric)
    if as_json():
        for run, place in zip(runs, (path, folder), strict=True):
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
