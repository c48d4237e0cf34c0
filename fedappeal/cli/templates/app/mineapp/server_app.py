"""The server: as for Flower's FedAvg, with a strategy for volunteers."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedappeal.strategies import MaxFL
from mineapp.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over all rounds, and keep the model."""
    strategy = MaxFL(fraction_train=float(context.run_config["fraction-train"]), min_available_nodes=2)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(context.run_config["learning-rate"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}, GM-Appeal {metrics['gm_appeal']:.2f}")
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
