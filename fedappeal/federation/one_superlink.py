"""A SuperLink in this process that has its database alone, and certificates that are valid."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from fedappeal.federation.continuing import continue_unfinished
from fedappeal.flower.superlink.database_file import set_aside_half_made
from fedappeal.flower.superlink.superlink_log import PLAIN, log_refusals, readable_log, warn_of_ends
from fedappeal.flower.superlink.superlink_process import Ports, run_superlink
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import private_log
from fedappeal.system.json_log import chosen_formatter
from fedappeal.system.locks import InUse, only_process
from fedappeal.system.validity import Validity


def run_one_superlink(
    arguments: Sequence[str], *, guarded: bool, resumes: bool = False, allow: Sequence[str] = ()
) -> None:
    """Run a SuperLink with a readable log, unless another one runs on its database.

    Args:
        arguments: options of `flower-superlink`, and `FLEET_HTTP`.
        guarded: as in `run_superlink`.
        resumes: whether to continue the runs of its database that were under way when it ended.
        allow: packages whose code these may name.

    Raises:
        ConfigError: options, certificates or a database that are not allowed; before anything is started.
    """
    readable_log(chosen_formatter(PLAIN))
    log_refusals()
    ports = Ports.of(arguments)
    dates = check_certificates(ports.tls[0] if ports.tls else "", ports.ca)
    with only_superlink(ports.database):
        if resumes:
            continue_unfinished(ports, allow)
        warn_of_ends(dates)
        try:
            run_superlink(ports, guarded=guarded)
        except (sqlite3.Error, DBAPIError) as error:  # a full disk
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise ConfigError(f"database = '{ports.database}' cannot be read or written: {reason}") from None


@contextmanager
def only_superlink(database: Path | None) -> Iterator[None]:
    """Hold a database's lock during the block; the file, made if missing, is its owner's alone.

    Raises:
        ConfigError: another SuperLink runs on it, or it cannot be written.
    """
    if database is None:
        yield
        return
    file = database.resolve()
    try:
        with only_process(file.parent, f"{file.name}.lock"):
            try:
                set_aside_half_made(file)
                private_log(file).close()  # SQLite gives the files beside it the same mode
            except OSError as error:
                raise ConfigError(f"database = '{database}' is not allowed: {error.strerror or error}") from None
            except sqlite3.Error as error:
                raise ConfigError(f"database = '{database}' cannot be read or written: {error}") from None
            yield
    except InUse as error:
        raise ConfigError(
            f"database = '{database}' is not allowed: the SuperLink of process {error.process} runs on it"
        ) from None


def check_certificates(certificate: str, ca: str) -> list[tuple[str, Validity]]:
    """Check the dates of a SuperLink's certificates; return what each is called, with its dates.

    Args:
        certificate: the file of its own.
        ca: the file of its CA's.

    Raises:
        ConfigError: one is not valid now, or cannot be read.
    """
    checked = []
    for setting, file, read in (
        ("ssl-certfile", certificate, Validity.of_server),
        ("ssl-ca-certfile", ca, Validity.of_ca),
    ):
        if not file:
            continue
        name = f"{setting} = '{file}'"
        try:
            validity = read(Path(file).read_bytes())
        except (OSError, ValueError) as error:
            reason = (error.strerror or error) if isinstance(error, OSError) else "it holds no certificate in PEM"
            raise ConfigError(f"{name} is not allowed: {reason}") from None
        if fault := validity.fault(f"the certificate of {name}"):
            raise ConfigError(f"{fault}; `fedappeal certs` renews a server's")
        checked.append((f"the certificate of {name}", validity))
    return checked
