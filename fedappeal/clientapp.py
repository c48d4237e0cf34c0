"""Any Flower ClientApp as a volunteer: two changed lines for its author."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.clientapp import ClientApp

from client.app_learner import Interface
from client.volunteer import AppClients, VolunteerApp
from fedappeal.settings.config import Scalar


def volunteer(
    app: ClientApp,
    *,
    loss: str = "",
    metric: str = "",
    higher_is_better: bool = True,
    examples: str = "num-examples",
    splits: bool = False,
    halves: bool = False,
    rules: Sequence[str] = (),
    gradient: str = "",
    evaluate_config: Mapping[str, Any] | None = None,
    **settings: Scalar,
) -> ClientApp:
    """Return a ClientApp that looks at each model by the app's ``evaluate``, and joins, sits out or leaves.

    It trains alone by the app's ``train`` for its requirement rho_k: ``solo.steps`` calls of it, from the first model
    that it sees. A joined round is one call more.

    Args:
        app: the app, with functions for TRAIN and EVALUATE.
        loss: the number of its ``evaluate`` by which the client judges; empty: the one that ends in ``loss``.
        metric: the number that is shown beside it; empty: the one that ends in ``acc`` or ``accuracy``.
        higher_is_better: which way that metric is better.
        examples: the number of examples.
        splits: whether ``evaluate`` measures the data that ``split`` in its configuration names: train, held-out,
            test.
        halves: for ``judge_on="cross-fitted"``: whether it also measures the halves of the held-out data, held-out-1
            and held-out-2, which share no input.
        rules: local rules that ``train`` follows where its configuration has their settings: ``["prox"]`` with
            ``proximal-mu``.
        gradient: ``query``: the app has ``@app.query("gradient")``, which returns the gradient as its model; or the
            name, in ``train``'s configuration, of the learning rate of the one plain step that ``train`` takes.
        evaluate_config: what ``evaluate`` is told before a strategy has told it.
        settings: settings of a run, with underscores, ``__`` for the dot of a plug-in's: ``participation="always"``,
            ``goodwill=3``, ``solo__steps=5``.

    Raises:
        ConfigError: for a setting that is not allowed.
    """
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    interface = Interface(loss, metric, higher_is_better, examples, splits, halves, tuple(rules), gradient)
    return VolunteerApp(AppClients(app, interface, evaluate_config, named))
