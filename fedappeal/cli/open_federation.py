"""`fedappeal federation open`: a folder with certificates, database and settings, and its SuperLink."""

import getpass
import json
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import click
from click.core import ParameterSource

from fedappeal.federation.folder import SETTINGS, Addresses
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import did_you_mean
from fedappeal.system.files import private_folder, replace_file
from fedappeal.system.keep_running import keep_running
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
_JOIN = "0.0.0.0:9094"  # nosec B104 # volunteers come from anywhere; it listens while an invitation is open
_ABOUT = {
    "host": "names and IP addresses under which clients reach this machine; invitations hold the first",
    "join-address": "HOST:PORT of this machine where invitations are redeemed, open while there is one; empty: none",
}


@dataclass(frozen=True)
class Option:
    """An option of `fedappeal superlink`: its help and default, whether it is a flag, and may be repeated."""

    help: str
    default: Any
    flag: bool = False
    several: bool = False


Options = Mapping[str, Option]


@dataclass(frozen=True)
class FederationSettings:
    """The content of a federation's file of settings.

    Attributes:
        hosts: names of this machine; the first stands in invitations.
        join: ``HOST:PORT`` where invitations are redeemed; empty: nowhere.
        superlink: options of `fedappeal superlink`, without their dashes.
    """

    hosts: Sequence[str]
    join: str
    superlink: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, options: Options) -> "FederationSettings":
        """Read a file; ConfigError for what it may not hold."""
        from fedappeal.federation.certificates import general_name

        if not path.is_file():  # a pipe would be waited for
            raise ConfigError(f"file '{path}' cannot be read: it is no file")
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"file '{path}' cannot be read: {error}") from None
        hosts, join, superlink = values.pop("host", ()), values.pop("join-address", ""), values.pop(_TABLE, {})
        for key in values:
            raise ConfigError(f"{key} in '{path}' is not allowed: host, join-address and the table [{_TABLE}]")
        if not (isinstance(hosts, list) and hosts and all(isinstance(host, str) for host in hosts)):
            raise ConfigError(f"host in '{path}' is not allowed: a list of names, such as [\"fed.example.org\"]")
        for host in hosts:  # it becomes a part of the files for services
            general_name(host)
        if not isinstance(superlink, dict):
            raise ConfigError(f"{_TABLE} in '{path}' is not allowed: a table, [{_TABLE}]")
        if not isinstance(join, str):
            raise ConfigError(f"join-address in '{path}' is not allowed: a text, HOST:PORT")
        settings = cls(hosts, join, superlink)
        settings.arguments(path, options)
        return settings

    def without(self, keys: Sequence[str]) -> "FederationSettings":
        """Return these settings with some options at their defaults."""
        kept = {key: value for key, value in self.superlink.items() if key not in keys}
        return FederationSettings(self.hosts, self.join, kept)

    def text(self, options: Options) -> str:
        """Return the file: every option with its help, as a comment where it is not set."""
        lines = [
            "# A federation: `fedappeal federation open` starts it. An option of that command goes before a line",
            "# here, and `#` before a line makes it the default. Paths begin at this folder.",
        ]
        for key, value in {"host": list(self.hosts), "join-address": self.join}.items():
            lines += ["", *_comment(_ABOUT[key]), _line(key, value)]
        lines += ["", f"[{_TABLE}]"]
        for key, option in options.items():
            shown = [] if option.several else "" if option.default is None else option.default
            line = _line(key, self.superlink[key]) if key in self.superlink else f"# {_line(key, shown)}"
            lines += ["", *_comment(option.help), line]
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
            wanted: type | tuple[type, ...] = bool if option.flag else list if option.several else (str, int)
            if not isinstance(value, wanted) or isinstance(value, bool) != option.flag:
                kind = (
                    "true or false" if option.flag else "a list of texts" if option.several else "a text or a number"
                )
                raise ConfigError(f"{key} = {value!r} in '{path}' is not allowed: {kind}")
            if option.flag:
                words += [f"--{key}"] if value else []
            else:
                several: Any = value if option.several else [value]
                words += [f"--{key}={one}" for one in several if one != ""]
        return words


def _line(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"  # of these kinds JSON and TOML write alike


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 110, initial_indent="# ", subsequent_indent="# ")


def superlink_options(command: click.Command) -> dict[str, Option]:
    """Return all options of the command `superlink` by name: its own, then Flower's."""
    from fedappeal.flower.superlink.superlink_process import superlink_actions

    options = {}
    for own in command.params:
        if isinstance(own, click.Option):
            options[own.opts[0].lstrip("-")] = Option(own.help or "", own.default, own.is_flag, own.multiple)
    for action in superlink_actions():
        flag = action.nargs == 0
        default = False if flag else action.default
        options[action.option_strings[0].lstrip("-")] = Option(str(action.help or ""), default, flag)
    return options


def _given(command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
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
    """Return a command line without words such as ``--no-resume``, and the flags that these switch off.

    Raises:
        ConfigError: a flag is switched on, too.
    """
    negated = {f"--no-{key}": key for key, option in options.items() if option.flag}
    off = [negated[word] for word in arguments if word in negated]
    for key in off:
        if f"--{key}" in arguments:
            raise ConfigError(f"no-{key} is not allowed with {key}")
    return [word for word in arguments if word not in negated], off


def open_federation(
    command: click.Command,
    folder: Path,
    hosts: Sequence[str],
    join: str | None,
    service: bool,
    arguments: Sequence[str],
) -> None:
    """Make what is missing in a federation's folder, and start its SuperLink, until SIGTERM or Ctrl-C.

    Args:
        command: `fedappeal superlink`.
        folder: the folder.
        hosts: names of this machine, besides those of the file of settings.
        join: ``HOST:PORT`` where invitations are redeemed; None: as that file says.
        service: write files for systemd and Docker, and start nothing.
        arguments: options of `fedappeal superlink`, which go before those of the file; ``--no-FLAG`` ends one.

    Raises:
        ConfigError: before anything is started, for what is not allowed.
    """
    from fedappeal.federation.address import check_port
    from fedappeal.federation.certificates import check_names, write_certificates
    from fedappeal.flower.node.tls import split_address

    if str(folder).startswith("-"):
        raise ConfigError("folder is missing: fedappeal federation open FOLDER, and options after it")
    path, options = folder / SETTINGS, superlink_options(command)
    given, off = _without_flags(arguments, options)
    if path.exists():
        settings = FederationSettings.read(path, options).without(off)
    elif not hosts:
        raise ConfigError("host is missing: the name or address under which clients reach this machine (--host)")
    else:
        first = {**_FIRST, **_given(command, given), **dict.fromkeys(off, False)}
        settings, given = FederationSettings(hosts, _JOIN if join is None else join, first), []
    join = settings.join if join is None else join
    words = [*settings.arguments(path, options), *given]
    with command.make_context("superlink", words) as context:
        addresses = _addresses(context.args, hosts or settings.hosts, join)
        if not folder.exists():
            private_folder(folder)
        certs = folder / _CERTS
        if (certs / "ca.key").exists() or not (certs / "server.crt").exists():  # the CA's key may be kept elsewhere
            print_lines(map(str, write_certificates(certs, [*settings.hosts, *hosts], [], 825)))
        else:
            check_names(certs / "server.crt", [*settings.hosts, *hosts])
        (folder / "runs").mkdir(exist_ok=True)
        if not path.exists():
            replace_file(path, settings.text(options).encode())
            print_lines([f"made  {path}  (all settings)"])
        if service:
            print_lines(_write_services(folder.absolute(), context.args, addresses))
            return
        if addresses.join:
            address, port = split_address(join)
            check_port(port, "join-address", address)
        os.chdir(folder)
        addresses.write(Path())
        print_lines(_next_steps(addresses))
        with _redeeming(context.args, join if addresses.join else ""):
            command.invoke(context)


def _addresses(arguments: Sequence[str], hosts: Sequence[str], join: str) -> Addresses:
    """Return where a SuperLink with these options is reached; ConfigError where that is no place."""
    from fedappeal.flower.superlink.superlink_process import Ports

    ports = Ports.of(arguments)
    if join and not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", join):
        raise ConfigError(f"join-address = '{join}' is not allowed: HOST:PORT of this machine")
    if not (ports.keys_only and ports.tls):  # every client is admitted, or nothing could be trusted
        join = ""
    host = f"[{hosts[0]}]" if ":" in hosts[0] and not hosts[0].startswith("[") else hosts[0]
    fleet, redeemed = (f"{host}:{_port(address)}" if address else "" for address in (ports.fleet, join))
    return Addresses(ports.control, ports.ca, fleet, redeemed)


def _redeeming(arguments: Sequence[str], join: str) -> AbstractContextManager[None]:
    """Return a block during which another process redeems invitations; ``join``: where, empty: nowhere."""
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


def _write_services(folder: Path, arguments: Sequence[str], addresses: Addresses) -> list[str]:
    """Write a federation's files for systemd and Docker; return a line each."""
    from fedappeal.flower.superlink.superlink_process import Ports

    ports = Ports.of(arguments)
    published = [f"{port}:{port}" for port in map(_port, (ports.fleet, ports.http, addresses.join)) if port]
    facts = {
        "folder": str(folder),
        "escaped": _escaped(str(folder)),
        "host": addresses.fleet.rpartition(":")[0],
        "user": getpass.getuser(),
        "python": sys.executable,
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


def _escaped(path: str) -> str:
    """Return a path for a unit of systemd; ConfigError for one that has a line break, a quotation mark or such."""
    if not path.isprintable() or set(path) & set('"\\$'):
        raise ConfigError(
            f"folder = {path!r} is not allowed with --service: a path without quotation marks, $ and \\"
        )
    return path.replace("%", "%%")


def _port(address: str) -> str:
    return address.rpartition(":")[2]
