"""Clients side by side against one after another: a round's local training of six models, in each form.

The same clients, data, minibatches and SGD for all arms: *plain loop* is a model, ``torch.optim.SGD`` and a loop
over clients and minibatches; *one by one* is a deployed client's arithmetic; *layers* and *vmap* train all clients at
once; *auto* is what ``fedappeal simulate`` takes. *Two threads* is ``--mode sequential --threads 2``: two clients at
a time, each on one thread; *PyTorch's threads* has one client at a time, each product on both. On a shared machine
CPU time says more than seconds; of threads and on a GPU (``FEDAPPEAL_BENCHMARK_DEVICE=cuda``) the seconds count.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.run import Figures, Row, timed

COUNTS = (5, 10, 20)
THREADS = 2
MODELS: Mapping[str, str] = {
    "mlp": "OwnMLP",
    "mlp-sequential": "sequential_mlp",
    "mlp-skipping": "SkippingMLP",
    "cnn": "CNN",
    "transformer": "Transformer",
    "lstm": "LSTM",
    "resnet": "ResNet18",
}
"""Name of a row's model -> what makes it, in `models`."""


class Round:
    """The local training of one round, on `DEVICE`.

    Args:
        model: of `MODELS`.
        clients: their number.
    """

    def __init__(self, model: str, clients: int) -> None:
        import numpy as np
        import torch

        from benchmarks.models import EXAMPLES, Given
        from client.training.models import arrays_of
        from client.training.requests import TrainRequest
        from client.training.sgd import SGD
        from fedappeal.core.local_rule import LocalTrainingSettings
        from fedappeal.settings.config import RunConfig
        from fedappeal.simulation.pool import Pool

        torch.set_num_threads(1)
        self.device = torch.device(os.environ.get("FEDAPPEAL_BENCHMARK_DEVICE", "cpu"))
        self.task = Given(MODELS[model])
        self.module = self.task.initial_model(0).to(self.device)
        self.pool = Pool(self.task, clients, self.device)
        size, steps = self.task.batch, self.task.steps
        values: dict[str, Any] = {"clients": clients, "clients-per-round": clients, "batch-size": size}
        self.config = RunConfig.parse(values | {"local-steps": steps, "learning-rate": 0.01})
        training, draws = LocalTrainingSettings.of(self.config.as_config()), np.random.default_rng(0)
        arrays = arrays_of(self.module)
        self.requests = [
            TrainRequest(
                **{"task": self.task, "model": self.module, "place": k, "data": self.pool.client(k).train},
                **{"arrays": arrays, "rule": SGD(), "training": training, "seed": 0, "client_id": str(k)},
                **{"batches": draws.integers(0, EXAMPLES, (steps, size)), "server_round": 1, "purpose": "batches"},
            )
            for k in range(clients)
        ]

    def plain_loop(self) -> None:
        """Train client by client, as a script does."""
        import torch

        from client.training.models import arrays_of

        start = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        self.module.train()
        for request in self.requests:
            self.module.load_state_dict(start)
            optimiser = torch.optim.SGD(self.module.parameters(), lr=0.01)
            for rows in torch.from_numpy(request.batches).to(self.device):
                batch = request.data.take(rows)
                optimiser.zero_grad()
                self.task.loss(self.task.forward(self.module, batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            arrays_of(self.module)
        self.module.load_state_dict(start)

    def one_by_one(self) -> None:
        """Train as deployed clients do."""
        from client.training.requests import Arithmetic

        for request in self.requests:
            Arithmetic().train(request)

    def by(self, scheduler: Any) -> Callable[[], None]:
        """Return what trains all clients by a scheduler."""
        from fedappeal.simulation.forms.choice import train_all

        return lambda: train_all(scheduler, self.requests)

    def form(self, mode: str) -> Callable[[], None]:
        """Return what trains all clients in a form; `NotBatchable`: the model has none."""
        from fedappeal.simulation.forms.choice import form_of
        from fedappeal.simulation.forms.scheduler import BatchScheduler
        from fedappeal.simulation.options import SEQUENTIAL

        if mode == SEQUENTIAL:
            return self.one_by_one
        found = form_of(mode, self.task, self.module)
        assert found is not None
        return self.by(BatchScheduler(self.pool, found))

    def chosen(self) -> Any:
        """Return what ``auto`` takes."""
        from client.training.sgd import SGD
        from fedappeal.simulation.forms.choice import Problem, choose

        return choose("auto", Problem(self.config, self.task, self.module, SGD, lambda: self.pool))


def trained(model: str, clients: int, arm: str, rounds: int) -> Figures:
    """Return the seconds of a round's local training by an arm."""
    import torch

    from fedappeal.simulation.forms.batched import NotBatchable
    from fedappeal.simulation.forms.scheduler import ThreadedScheduler
    from fedappeal.simulation.process_wide import single_threaded_workers

    this = Round(model, clients)
    if arm == "two threads":
        with single_threaded_workers(THREADS) as workers:
            assert workers is not None
            return timed(this.by(ThreadedScheduler(workers, THREADS)), rounds)
    if arm == "PyTorch's threads":
        torch.set_num_threads(THREADS)
    choice = this.chosen() if arm == "auto" else None
    try:
        work = {
            "plain loop": this.plain_loop,
            "one by one": this.one_by_one,
            "PyTorch's threads": this.one_by_one,
        }.get(arm) or this.form(choice.mode if choice else arm)
        cuda = this.device.type == "cuda"
        found = timed(lambda: (work(), torch.cuda.synchronize() if cuda else None), rounds)
    except (NotBatchable, RuntimeError) as error:
        return {"takes": str(error).splitlines()[0]}
    return {**found, "takes": f"{choice.mode}: {choice.why}"} if choice else found


_THREADED = ("resnet", "transformer")

ROWS = {
    **{
        f"side-by-side/{model}-{n}": Row(
            {arm: partial(trained, model, n, arm) for arm in ("plain loop", "one by one", "layers", "vmap", "auto")},
            "plain loop",
            rounds=9,
        )
        for model in MODELS
        for n in COUNTS
    },
    **{
        f"threads/{model}": Row(
            {arm: partial(trained, model, 10, arm) for arm in ("one by one", "two threads", "PyTorch's threads")},
            "one by one",
            "s",
            rounds=5,
        )
        for model in _THREADED
    },
}
