"""`fedappeal join`: a device becomes a member of a federation by one line."""

import os
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import typer

from fedappeal.cli.client import DEFAULT_STATE, checked_owner, chosen_options, state_folder
from fedappeal.cli.options import OwnerValues
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import local_path
from fedappeal.system.files import replace_file
from fedappeal.system.systemd import unit_path
from fedappeal.views.terminal.printing import print_lines

if TYPE_CHECKING:
    from client.settings import AppSettings, NodeSettings

_OF_INVITATION = ("superlink", "root-certificates", "key", "insecure")
"""Options of `fedappeal client` that an invitation stands for."""
_UNIT = "fedappeal-client.service"


def join(
    context: typer.Context,
    invitation: str,
    *,
    state_dir: Path = DEFAULT_STATE,
    service: bool = False,
    given: OwnerValues,
) -> None:
    """Join a federation by an invitation, with your own data; afterwards `fedappeal client` alone continues.

    Args:
        context: says which options were written.
        invitation: the line that the operator sent, or its file.
        state_dir: folder of this client's durable state.
        service: write a systemd unit of this user for the client, and start nothing.
        given: the owner's settings.
    """
    from client.data.refused import is_function
    from client.state.membership import Membership
    from fedappeal.protocol.invitation import LONGEST, Invitation

    chosen = {key: given[key] for key in given if key in chosen_options(context)}
    for key in _OF_INVITATION:
        if key in chosen:
            raise ConfigError(
                f"{key} = '{chosen[key]}' is not allowed here: the invitation says it (fedappeal client)"
            )
    try:
        with open(local_path(invitation, "invitation"), encoding="utf-8-sig") as file:
            invitation = file.read(LONGEST)
    except (OSError, ValueError):  # the line itself
        pass
    invited, folder = Invitation.parse(invitation), state_folder(state_dir).absolute()
    member = Membership.read(folder)
    if member and member.fingerprint != invited.fingerprint.hex():
        raise ConfigError(
            f"state-dir = '{folder}' is not allowed: it is a member of {member.options['superlink']}; name another "
            "folder, or leave that federation first (fedappeal client leave --federation)"
        )
    given |= {**(member.options if member else {}), **chosen}
    given |= _asked_for(given)
    node, of_app, _ = checked_owner(given, folder)
    if node.data and not is_function(node.data):
        chosen["data"] = node.data
    chosen |= {key: given[key] for key in ("label",) if given[key]}
    unit = _unit_of(folder) if service else ""
    if member is None:
        _become_member(invited, folder, node, of_app, chosen)
    else:
        anew = "to join anew, first fedappeal client leave --federation"
        print_lines([f"this device is a member already, as '{member.name}', and uses no invitation ({anew})"])
        Membership(member.name, member.fingerprint, {**member.options, **chosen}).write(folder)
    if unit:
        print_lines(_write_service(unit))
        return
    sys.stdout.flush()
    # The same program: the line with the secret is in no list of processes any more.
    words = [sys.executable, "-P", "-m", "fedappeal.cli.main", "client", "--state-dir", str(folder)]
    os.execv(words[0], words)  # nosec B606 # no shell


def _unit_of(folder: Path) -> str:
    """Return the user's systemd unit that runs the client.

    Raises:
        ConfigError: a path that no unit can name.
    """
    template = Template((files("fedappeal.federation") / "templates" / _UNIT).read_text("utf-8"))
    return template.substitute(python=unit_path(sys.executable, "python"), folder=unit_path(folder, "state-dir"))


def _write_service(unit: str) -> list[str]:
    """Write the unit; return what to do next."""
    file = local_path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "XDG_CONFIG_HOME") / "systemd/user" / _UNIT
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, unit.encode())
    return [
        f"made  {file}",
        "start it now and at each login: systemctl --user enable --now fedappeal-client (without login: loginctl "
        "enable-linger)",
    ]


def _asked_for(given: dict[str, Any]) -> dict[str, Any]:
    """Return data and a table's label, asked for at a terminal if missing."""
    from fedappeal.data.columns import is_table

    asked = {key: given[key] for key in ("data", "label")}
    needs_data = not given["app"] and given["partition-id"] < 0
    if needs_data and sys.stdin.isatty():
        asked["data"] = asked["data"] or typer.prompt("your data (a table, an .npz, a folder of images)")
        if is_table(asked["data"]) and not asked["label"]:
            asked["label"] = typer.prompt("the table's column of labels")
    if needs_data and not asked["data"]:
        raise ConfigError("data is missing: your own data, a table, an .npz or a folder of images (--data)")
    return asked


def _become_member(
    invited: Any, folder: Path, node: "NodeSettings", of_app: "AppSettings", chosen: dict[str, Any]
) -> None:
    """Check the data, print what will happen, redeem an invitation, and keep the membership.

    Nothing is kept before.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    from client.data.own_data import fitting_tasks
    from client.fleet.joining import JoinPort
    from client.settings import Connection
    from client.state.membership import CA, KEY, Membership
    from fedappeal.federation.certificates import make_key
    from fedappeal.protocol.foreign_text import printable
    from fedappeal.system.files import private_folder
    from fedappeal.system.locks import InUse, only_process

    port, key_file = JoinPort(invited), folder / KEY
    port.verify()
    key: Any = None
    if key_file.exists():  # an earlier answer may have been lost
        make_key(key_file)
        key = load_ssh_private_key(key_file.read_bytes(), None)
    about = port.look(key)
    name, runs = printable(about.get("name", ""), 64), about.get("runs")
    tasks = [str(run.get("task")) for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    fits, reasons = ({}, []) if of_app.app or not node.data else fitting_tasks(node.data, node.columns, tasks)
    if reasons and not fits and len(reasons) == len(set(tasks)):
        raise ConfigError(f"the data fit no run of this federation, so nothing was sent: {'; '.join(reasons)}")
    print_lines(_what_happens(invited, name, node, of_app, tasks, fits))
    if not folder.exists():
        private_folder(folder)
    try:
        with only_process(folder):  # else the key on disk could be another than the one that is registered
            if Membership.read(folder):
                raise ConfigError(
                    f"state-dir = '{folder}' is not allowed: it became a member's a moment ago; join again"
                )
            make_key(key_file, name)
            key = load_ssh_private_key(key_file.read_bytes(), None)
            replace_file(folder / CA, port.ca)  # if it cannot be, before the invitation is spent
            answer = port.redeem(key)
            superlink = {
                "superlink": str(answer.get("superlink")),
                "root-certificates": str(folder / CA),
                "key": str(key_file),
            }
            Connection.parse(superlink)
            name = printable(answer.get("name", ""), 80)
            options = {"connect-timeout": 0.0, **chosen, **superlink}
            Membership(name, invited.fingerprint.hex(), options).write(folder)
    except InUse as error:
        raise ConfigError(
            f"state-dir = '{folder}' is not allowed: process {error.process} uses it; try again when it has ended"
        ) from None
    print_lines([f"joined as '{name}'; later `fedappeal client` alone continues (kept in {folder})"])


def _what_happens(
    invited: Any, name: str, node: "NodeSettings", of_app: "AppSettings", tasks: list[str], fits: dict[str, int]
) -> list[str]:
    """Return the five lines that an owner reads before a device joins."""
    from client.limits.limits import read_limits
    from client.settings import BUNDLE
    from fedappeal.protocol.foreign_text import printable

    limits = read_limits(node.state_folder or Path()).with_text(node.limits)
    runs = printable(", ".join(dict.fromkeys(tasks)), 100) or "none yet"
    count = ", ".join(f"{number} examples for {task}" for task, number in fits.items()) or "data (seen by no run yet)"
    code = f"fedappeal's own{f' and {node.allow}' if node.allow else ''}; a run sends settings and models, no code"
    if of_app.app:
        whose = "each run's that you approve" if of_app.app == BUNDLE else of_app.app
        code = f"{whose}; {'NOT ' if of_app.no_sandbox else ''}confined to the data"
    host, known = invited.address.rpartition(":")[0], invited.fingerprint.hex()[:16]
    return [
        f"who asks:  {host} ({known}), its runs: {runs}; you are '{name}'",
        f"code:      {code}",
        f"leaves:    models, losses, counts (fedappeal client sent); never your {count}",
        f"costs:     time ({limits.hours or 'always'}), models to {limits.max_model:g} MB (fedappeal client limits)",
        "to stop:   Ctrl-C; fedappeal client pause; or fedappeal client leave --federation",
    ]
