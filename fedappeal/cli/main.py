"""The `fedappeal` command: checks that its packages can be imported, then does what `commands` has for it."""

import sys
from importlib.util import find_spec
from pathlib import Path

from fedappeal.system.encodable import write_encodable
from fedappeal.system.tuning import sleep_while_waiting

PACKAGES = ("client", "server", "strategies")
"""What is installed beside the package ``fedappeal``."""


def check_names() -> None:
    """Check that imports find fedappeal's own packages.

    Raises:
        ImportError: one line that names the file in the way.
    """
    root = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        in_the_way = _import_path(name)
        if in_the_way is not None and in_the_way.resolve() != root / name:
            raise ImportError(
                f"'{in_the_way}' is in the way of fedappeal's own package '{name}' ({root / name}): "
                f"rename it, or run from another folder",
                name=name,
            )


def _import_path(name: str) -> Path | None:
    """Return the file or folder that a top-level name imports; None if none."""
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module else find_spec(name)
    except ValueError:  # it was made by hand, without a spec
        spec = None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def main(by_variables: str = "") -> None:
    """Run the command; a user's error is one line and exit code 2, Ctrl-C exit code 130.

    Args:
        by_variables: a command whose options environment variables set, where they are not given; empty: none.
    """
    try:
        _run(by_variables)
    except KeyboardInterrupt:  # while it imports: a command that has begun ends by itself
        sys.exit(130)


def _run(by_variables: str) -> None:
    write_encodable()
    try:
        check_names()
    except ImportError as error:
        print(f"fedappeal: {error}", file=sys.stderr)
        sys.exit(2)
    sleep_while_waiting()
    # Here, because a file of the user's could be imported in place of ours before the check.
    from click import Group, UsageError
    from typer.main import get_command

    from fedappeal.cli.commands import cli
    from fedappeal.cli.options import refuse_empty_paths, take_variables
    from fedappeal.settings.model import ConfigError, Failure
    from fedappeal.system.plain_files import OF_THE_DISK
    from fedappeal.views.terminal.printing import complain

    try:
        command = get_command(cli)
        refuse_empty_paths(command)
        if by_variables and isinstance(command, Group):
            take_variables(command.commands[by_variables])
        sys.exit(command(sys.argv[1:] or ["--help"], prog_name="fedappeal", standalone_mode=False) or 0)
    except ConfigError as error:
        lines = str(error).splitlines()
    except UsageError as error:
        from fedappeal.cli.options import explain

        lines = [explain(error)]
    except Failure as failure:
        for line in failure.lines:
            complain(line, prefix="" if failure.code == 130 else "fedappeal: ")  # 130: after Ctrl-C
        sys.exit(failure.code)
    except OSError as error:
        if error.errno not in OF_THE_DISK and error.filename is None:
            raise
        complain(error)
        sys.exit(1)
    for line in lines:
        complain(line)
    sys.exit(2)


if __name__ == "__main__":
    main()
