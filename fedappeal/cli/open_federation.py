"""`fedappeal federation open`: a folder with certificates, database and settings, and its SuperLink."""

import getpass
import json
import os
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import click
from click.core import ParameterSource

from fedappeal.federation.folder import SETTINGS, Addresses
from fedappeal.protocol.invitation import is_address
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import NotHere, attribute_doc, did_you_mean, kebab
from fedappeal.system.files import private_folder, replace_file
from fedappeal.system.keep_running import keep_running
from fedappeal.system.locks import InUse, only_process
from fedappeal.system.systemd import unit_path
from fedappeal.views.terminal.printing import complain, print_lines

_CERTS = "certs"
_TABLE = "superlink"
_FIRST: Mapping[str, Any] = {
    "ssl-ca-certfile": f"{_CERTS}/ca.crt",
    "ssl-certfile": f"{_CERTS}/server.crt",
    "ssl-keyfile": f"{_CERTS}/server.key",
    "enable-supernode-auth": True,
    "fleet-api-address": "0.0.0.0:9092",
    "database": "state.db",
    "resume": True,
    "page": "8090",
    "runs": "runs",
}
"""What a new folder sets, of the options of `fedappeal superlink`."""
_SERVICES = {
    "fedappeal-federation.service": "sudo systemctl enable --now $folder/fedappeal-federation.service",
    "compose.yml": "docker compose -f $folder/compose.yml up -d, with the image fedappeal",
}
"""The files for services, each with the command that starts it."""
_JOIN = "0.0.0.0:9094"  # volunteers come from anywhere; it listens while an invitation is open
"""Where a new federation redeems invitations."""
_TEXTS = ("join_address", "fleet_published", "join_published")
"""What a federation's file has besides hosts and the table."""

Options = Mapping[str, click.Option]
"""Those of `fedappeal superlink`, by name."""


@dataclass(frozen=True)
class FederationSettings:
    """The content of a federation's file of settings; the docstrings of texts and hosts are its comments."""

    host: Sequence[str]
    """names and IP addresses under which clients reach this machine; invitations hold the first"""
    join_address: str = ""
    """HOST:PORT of this machine where invitations are redeemed, open while there is one; empty: none"""
    fleet_published: str = ""
    """HOST:PORT by which clients reach the Fleet API, where a router has another one; empty: the first host, and
    fleet-api-address's port"""
    join_published: str = ""
    """HOST:PORT in invitations, where a router has another one; empty: the first host, and join-address's port"""
    superlink: Mapping[str, Any] = field(default_factory=dict)
    """options of `fedappeal superlink`, without their dashes"""

    @classmethod
    def read(cls, path: Path, options: Options) -> "FederationSettings":
        """Return the settings that a file holds.

        Raises:
            ConfigError: a key or value that is not allowed.
        """
        from fedappeal.federation.certificates import general_name

        if not path.is_file():  # a pipe would be waited for
            raise ConfigError(f"file '{path}' cannot be read: it is no file")
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"file '{path}' cannot be read: {error}") from None
        hosts, superlink, texts = values.get("host", ()), values.get(_TABLE, {}), list(map(kebab, _TEXTS))
        for key in values:
            if key not in ("host", _TABLE, *texts):
                allowed = f"host, {', '.join(texts)} and the table [{_TABLE}]"
                raise ConfigError(f"{key} in '{path}' is not allowed: {allowed}")
        if not (isinstance(hosts, list) and hosts and all(isinstance(host, str) for host in hosts)):
            raise ConfigError(f"host in '{path}' is not allowed: a list of names, such as [\"fed.example.org\"]")
        for host in hosts:  # it becomes a part of the files for services
            general_name(host)
        if not isinstance(superlink, dict):
            raise ConfigError(f"{_TABLE} in '{path}' is not allowed: a table, [{_TABLE}]")
        for key in texts:
            if not isinstance(values.get(key, ""), str):
                raise ConfigError(f"{key} in '{path}' is not allowed: a text, HOST:PORT")
        settings = cls(**{key.replace("-", "_"): value for key, value in values.items()})
        settings.arguments(path, options)
        return settings

    def text(self, options: Options) -> str:
        """Return the file's text: every option with its help, unset ones as comments."""
        lines = [
            "# A federation: `fedappeal federation open` starts it. An option of that command goes before a line",
            "# here, and `#` before a line makes it the default. Paths begin at this folder.",
        ]
        for name in ("host", *_TEXTS):
            lines += ["", *_comment(attribute_doc(type(self), name)), _line(kebab(name), getattr(self, name))]
        lines += ["", f"[{_TABLE}]"]
        for key, option in options.items():
            shown = [] if option.multiple else "" if option.default is None else option.default
            line = _line(key, self.superlink[key]) if key in self.superlink else f"# {_line(key, shown)}"
            lines += ["", *_comment(option.help or ""), line]
        return "\n".join(lines) + "\n"

    def arguments(self, path: Path, options: Options) -> list[str]:
        """Return the options of `fedappeal superlink` as words.

        Args:
            path: the file, for messages.
            options: as `superlink_options` returns them.

        Raises:
            ConfigError: for a key that is none, or a value of another kind.
        """
        words = []
        for key, value in self.superlink.items():
            option = options.get(key)
            if option is None:
                near = did_you_mean(key, options)
                raise ConfigError(f"{key} in '{path}' is not allowed: no option of `fedappeal superlink`{near}")
            wanted: type | tuple[type, ...] = bool if option.is_flag else list if option.multiple else (str, int)
            if not isinstance(value, wanted) or isinstance(value, bool) != option.is_flag:
                kind = "a list of texts" if option.multiple else "a text or a number"
                allowed = "true or false" if option.is_flag else kind
                raise ConfigError(f"{key} = {value!r} in '{path}' is not allowed: {allowed}")
            if option.is_flag:
                words += [f"--{key}"] if value else []
            else:
                several: Any = value if option.multiple else [value]
                words += [f"--{key}={one}" for one in several if one != ""]
        return words


def _line(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"  # of these kinds JSON and TOML write alike


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 110, initial_indent="# ", subsequent_indent="# ")


def superlink_options(command: click.Command) -> dict[str, click.Option]:
    """Return all options of the command `superlink` by name: its own, then Flower's."""
    from fedappeal.flower.superlink.superlink_process import superlink_actions

    options = [option for option in command.params if isinstance(option, click.Option)]
    for action in superlink_actions():
        flag = action.nargs == 0
        default = False if flag else action.default
        options.append(click.Option(action.option_strings[:1], help=action.help, default=default, is_flag=flag))
    return {option.opts[0].lstrip("-"): option for option in options}


def _options_written(command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command line by name, as the file of settings has them."""
    from fedappeal.flower.superlink.superlink_process import given_options

    with command.make_context("superlink", list(arguments)) as context:
        own = {
            parameter.opts[0].lstrip("-"): context.params[parameter.name or ""]
            for parameter in context.command.params
            if context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        }
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in own.items()}
        return plain | given_options(context.args)


def _without_flags(arguments: Sequence[str], options: Options) -> tuple[list[str], list[str]]:
    """Return a command line without ``--no-FLAG`` words, and the flags that these switch off.

    Raises:
        ConfigError: a flag is switched on, too.
    """
    negated = {f"--no-{key}": key for key, option in options.items() if option.is_flag}
    off = [negated[word] for word in arguments if word in negated]
    for key in off:
        if f"--{key}" in arguments:
            raise ConfigError(f"no-{key} is not allowed with {key}")
    return [word for word in arguments if word not in negated], off


def open_federation(
    command: click.Command,
    folder: Path,
    hosts: Sequence[str],
    texts: Mapping[str, str | None],
    service: bool,
    arguments: Sequence[str],
) -> None:
    """Make what is missing in a federation's folder, and start its SuperLink, until SIGTERM or Ctrl-C.

    Args:
        command: `fedappeal superlink`.
        folder: the folder.
        hosts: names of this machine, besides those of the file of settings.
        texts: the settings `_TEXTS`, by name; None: as that file says.
        service: write files for systemd and Docker, and start nothing.
        arguments: options of `fedappeal superlink`, which go before those of the file; ``--no-FLAG`` ends one.

    Raises:
        ConfigError: before anything is made or started, for what is not allowed, or a folder that is open already.
    """
    from fedappeal.federation.certificates import general_name

    if str(folder).startswith("-"):
        raise ConfigError("folder is missing: fedappeal federation open FOLDER, and options after it")
    path, options = folder / SETTINGS, superlink_options(command)
    given, off = _without_flags(arguments, options)
    chosen = {key: text for key, text in texts.items() if text is not None}
    is_new = not path.exists()
    if not is_new:
        settings = FederationSettings.read(path, options)
        superlink = {key: value for key, value in settings.superlink.items() if key not in off}
        settings = replace(settings, superlink=superlink, **chosen)
    elif not hosts:
        raise ConfigError("host is missing: the name or address under which clients reach this machine (--host)")
    else:
        first = {**_FIRST, **_options_written(command, given), **dict.fromkeys(off, False)}
        settings, given = FederationSettings(hosts, superlink=first, **{"join_address": _JOIN, **chosen}), []
    words = [*settings.arguments(path, options), *given]
    with command.make_context("superlink", words) as context:
        addresses = _addresses(context.args, hosts or settings.host, settings)
        if not addresses.fleet:
            raise ConfigError("simulation is not allowed: clients of a federation come to its Fleet API")
        join = settings.join_address if addresses.join else ""
        # What clients have from invitations is among the names that the certificate has to hold.
        invited = [address.rpartition(":")[0] for address in (addresses.fleet, addresses.join) if address]
        names = [*settings.host, *hosts, *invited]
        for name in names:
            general_name(name)
        for address in (addresses.fleet, addresses.join) if addresses.join else ():
            if not is_address(address):
                raise ConfigError(
                    f"address = '{address}' is not allowed in invitations: as first host one machine's name or "
                    "address, and a port from 1 to 65535"
                )
        _check_ports(context, join, suppress(NotHere) if service else nullcontext())
        with _alone(folder):
            if is_new and path.exists():
                raise ConfigError(f"folder = '{folder}' is not allowed: it was opened a moment ago; open it again")
            _make_missing(folder, names)
            if is_new:
                replace_file(path, settings.text(options).encode())
                print_lines([f"made  {path}  (all settings)"])
            if service:
                print_lines(_write_services(folder.absolute(), context.args, addresses, join))
                return
            os.chdir(folder)
            addresses.write(Path())
            context.obj = Path()  # the command says to its page that it is a federation's
            print_lines(_next_steps(addresses))
            with _redeeming(context.args, join):
                command.invoke(context)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a federation's folder during the block.

    Raises:
        ConfigError: another process has it open.
    """
    if not folder.exists():
        private_folder(folder)
    try:
        with only_process(folder.absolute()):
            yield
    except InUse as error:
        raise ConfigError(f"folder = '{folder}' is not allowed: process {error.process} has it open") from None


def _check_ports(context: click.Context, join: str, here: AbstractContextManager[None]) -> None:
    """Check that a federation's ports are free and all different.

    Args:
        context: of `fedappeal superlink`.
        join: where invitations are redeemed; empty: nowhere.
        here: a block for each check, which suppresses `NotHere` where another machine or process will listen.

    Raises:
        ConfigError: one is taken, or named twice.
    """
    from fedappeal.cli.option_groups import PageOptions
    from fedappeal.flower.superlink.superlink_process import Ports, listener
    from fedappeal.views.metrics.serving import MetricsPort

    values = context.params
    with ExitStack() as bound:
        for setting, address in {**Ports.of(context.args).by_option, "join-address": join}.items():
            if address:
                with here:
                    bound.enter_context(listener(address, setting))
        with here:
            _ = PageOptions(values["page"], values["page_published"]).place
        with here:
            MetricsPort(values["metrics_port"], values["metrics_address"])


def _make_missing(folder: Path, hosts: Sequence[str]) -> None:
    """Make a federation's certificates and folder of runs if they are missing."""
    from fedappeal.federation.certificates import check_names, write_certificates

    certs = folder / _CERTS
    if (certs / "ca.key").exists() or not (certs / "server.crt").exists():  # the CA's key may be kept elsewhere
        print_lines(map(str, write_certificates(certs, hosts, [], 825)))
    else:
        check_names(certs / "server.crt", hosts)
    (folder / "runs").mkdir(exist_ok=True)


def _addresses(arguments: Sequence[str], hosts: Sequence[str], settings: FederationSettings) -> Addresses:
    """Return the addresses at which a SuperLink with these options is reached.

    Raises:
        ConfigError: a value that is no address.
    """
    from fedappeal.flower.superlink.superlink_process import Ports

    ports, join = Ports.of(arguments), settings.join_address
    for name in _TEXTS:
        if (address := getattr(settings, name)) and not is_address(address):
            raise ConfigError(f"{kebab(name)} = '{address}' is not allowed: HOST:PORT, with a port from 1 to 65535")
    if not (ports.keys_only and ports.tls):  # every client is admitted, or nothing could be trusted
        join = ""
    host = f"[{hosts[0]}]" if ":" in hosts[0] and not hosts[0].startswith("[") else hosts[0]
    fleet, redeemed = (f"{host}:{_port(address)}" if address else "" for address in (ports.fleet, join))
    fleet = settings.fleet_published or fleet if fleet else ""
    redeemed = settings.join_published or redeemed if redeemed else ""
    return Addresses(ports.control, ports.ca, fleet, redeemed)


def _redeeming(arguments: Sequence[str], join: str) -> AbstractContextManager[None]:
    """Return a block during which another process redeems invitations.

    ``join`` is the address of that process; empty: none runs.
    """
    from fedappeal.flower.superlink.superlink_process import Ports

    if not join:
        return nullcontext()
    certificate, key = Ports.of(arguments).tls
    words = ["--federation", ".", "--address", join, "--certificate", certificate, "--key", key]
    command = [sys.executable, "-P", "-m", "fedappeal.cli.main", "federation", "redeem", *words]
    return keep_running(command, os.environ, lambda why: complain(f"the process that redeems invitations: {why}"))


def _next_steps(addresses: Addresses) -> list[str]:
    ports = " and, while an invitation is open, ".join(filter(None, (_port(addresses.fleet), _port(addresses.join))))
    invite = "fedappeal federation invite NAME" if addresses.join else "fedappeal federation register KEY.pub"
    return [
        f"the federation at {addresses.fleet}: let clients reach port {ports}; no other port is for them",
        f"next, in this folder: {invite}, and fedappeal submit --task digits --rounds 10",
    ]


def _write_services(folder: Path, arguments: Sequence[str], addresses: Addresses, join: str) -> list[str]:
    """Write a federation's files for systemd and Docker; return a line each."""
    from fedappeal.flower.superlink.superlink_process import Ports

    ports = Ports.of(arguments)
    published = [f"{port}:{port}" for port in map(_port, (ports.fleet, ports.http, join)) if port]
    facts = {
        "folder": str(folder),
        "escaped": unit_path(folder, "folder"),
        "host": addresses.fleet.rpartition(":")[0],
        "user": getpass.getuser(),
        "python": unit_path(sys.executable, "python"),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "ports": json.dumps([*published, "127.0.0.1:8090:8090"])[1:-1],
    }
    lines = []
    for name, start in _SERVICES.items():
        template = Template((files("fedappeal.federation") / "templates" / name).read_text("utf-8"))
        replace_file(folder / name, template.substitute(facts).encode())
        lines.append(f"made  {folder / name}  ({Template(start).substitute(facts)})")
    return lines


def _port(address: str) -> str:
    return address.rpartition(":")[2]
