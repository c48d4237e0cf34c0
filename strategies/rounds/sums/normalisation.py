"""Models whose layers keep running statistics, which a step beyond the average would spoil."""

from collections.abc import Sequence

from fedappeal.settings.config import ConfigError

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def refuse_batch_norm(strategy: str, names: Sequence[str]) -> None:
    """Check that no array of a model is a running statistic of batch normalisation.

    Args:
        strategy: the strategy's name.
        names: of the model's parameters and buffers.

    Raises:
        ConfigError: names the layers.
    """
    layers = dict.fromkeys(
        name.rpartition(".")[0] or "(unnamed)" for name in names if name.rpartition(".")[2] in _STATISTICS
    )
    if layers:
        raise ConfigError(
            f"model with BatchNorm is not allowed with strategy = '{strategy}': {', '.join(layers)} "
            "(parameters alone, no running statistics)"
        )
