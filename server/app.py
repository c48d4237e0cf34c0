"""The ServerApp: validates the run's settings and runs the strategy."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedappeal.flower.superlink.steady_time import keep_steady_time
from fedappeal.settings.config import RunConfig
from fedappeal.system.json_log import chosen_formatter
from fedappeal.system.tuning import return_freed_memory
from fedappeal.tasks.files.data_files import environment_data_dir
from server.build import chosen
from server.run import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run configuration describes."""
    log = logging.getLogger("fedappeal")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(chosen_formatter(logging.Formatter()))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return_freed_memory()
    keep_steady_time()
    run(grid, chosen(RunConfig.parse_recorded(context.run_config)), data_dir=environment_data_dir())
