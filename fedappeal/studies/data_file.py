"""What a study's data files have in common: their tables are checked, and one line says what is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedappeal.protocol.foreign_text import one_line
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import kebab


class Part(BaseModel):
    """A table of a file; other keys than its fields are not allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=kebab)


def first_problem(error: ValidationError) -> str:
    """Return the place and fault of a file's first wrong value."""
    first = error.errors()[0]
    where, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    return one_line(f"{where}: {reason}" if where else reason)


@contextmanager
def in_one_line(path: Path) -> Iterator[None]:
    """Raise the block's errors with a file as one line.

    Raises:
        ConfigError: names the file and the key.
    """
    try:
        yield
        return
    except ValidationError as error:
        reason = first_problem(error)
    except KeyError as error:
        reason = f"there is no {error}"
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
    raise ConfigError(f"{path} is not allowed: {reason}")
