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
    # One of Flower's own nodes starts a process for each message, which imports PyTorch anew.
    strategy = MaxFL(
        fraction_train=float(context.run_config["fraction-train"]), min_available_nodes=2, round_timeout=600
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": float(context.run_config["learning-rate"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    for number, metrics in result.evaluate_metrics_clientapp.items():
        shown = [f"{name} {metrics[name]:.3f}" for name in ("accuracy", "gm_appeal") if name in metrics]
        print(f"round {number}: {', '.join(shown) or 'no client answered'}")
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
