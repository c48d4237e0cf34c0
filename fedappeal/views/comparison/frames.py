"""The package pandas, which an extra brings."""

from typing import Any

from fedappeal.settings.config import ConfigError


def pandas() -> Any:
    """Return the package, with what it needs to write LaTeX.

    Raises:
        ConfigError: it is not installed; says how.
    """
    try:
        import jinja2  # noqa: F401
        import pandas
    except ImportError:
        raise ConfigError("data frames and LaTeX need pandas: pip install 'fedappeal[frames]'") from None
    return pandas
