"""The ServerApp: validates the run's settings and runs the strategy."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedappeal.flower.superlink.monotonic_time import keep_monotonic_time
from fedappeal.settings.config import RunConfig
from fedappeal.system.json_log import chosen_formatter, print_log
from fedappeal.system.tuning import return_freed_memory
from fedappeal.tasks.files.data_files import environment_data_dir
from server.build import check_real, run_plugins
from server.server_run import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run configuration describes."""
    print_log(logging.getLogger("fedappeal"), chosen_formatter(logging.Formatter()))
    return_freed_memory()
    keep_monotonic_time()
    config = RunConfig.parse_recorded(context.run_config)
    check_real(config)
    run(grid, run_plugins(config), data_dir=environment_data_dir())
