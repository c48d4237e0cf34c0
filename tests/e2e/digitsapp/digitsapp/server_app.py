"""The server, as in Flower's scikit-learn quickstart; one line is changed."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from digitsapp.task import initial
from fedappeal.strategies import MaxFL as FedAvg  # changed

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over all rounds, and keep the model."""
    config = context.run_config
    strategy = FedAvg(fraction_train=float(config["fraction-train"]), min_available_nodes=2)
    rounds = int(config["num-server-rounds"])
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(initial()), num_rounds=rounds, timeout=600)
    told = [dict(metrics) for metrics in result.evaluate_metrics_clientapp.values()]
    numbers = {key: [metrics[key] for metrics in told] for key in told[0]}
    np.savez(str(config["out"]), *result.arrays.to_numpy_ndarrays(), **numbers)
