"""The folder of a new run, made of its resolved settings."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fedappeal.record.folder import RunFolder
from fedappeal.settings.config import RunConfig, Scalar
from server.build import chosen
from server.given import NOTHING_GIVEN, Given


def new_run(
    path: Path,
    config: RunConfig,
    runtime: Mapping[str, Scalar] = MappingProxyType({}),
    given: Given = NOTHING_GIVEN,
) -> RunFolder:
    """Make the folder of a new run.

    Args:
        path: the folder.
        config: the run's settings.
        runtime: as `RunFolder.create` takes it.
        given: objects in place of names.

    Raises:
        ConfigError: it already holds a run or cannot be made.
    """
    return RunFolder.create(path, chosen(config, given).all_settings(), runtime)
