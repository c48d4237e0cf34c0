"""The ServerApp: validates the run's settings and runs the strategy."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedappeal.flower.superlink.steady_time import keep_steady_time
from fedappeal.settings.config import RunConfig
from fedappeal.system.json_log import chosen_formatter, print_log
from fedappeal.system.tuning import return_freed_memory
from fedappeal.tasks.files.data_files import environment_data_dir
from server.build import chosen
from server.run import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run configuration describes."""
    print_log(logging.getLogger("fedappeal"), chosen_formatter(logging.Formatter()))
    return_freed_memory()
    keep_steady_time()
    run(grid, chosen(RunConfig.parse_recorded(context.run_config)), data_dir=environment_data_dir())
