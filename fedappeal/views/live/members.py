"""A federation's members and invitations on its operator's page: who may come, who came, what each did last."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedappeal.federation import invitations, nodes
from fedappeal.federation.folder import FederationFolder
from fedappeal.federation.invitations import Invitations, Invited
from fedappeal.federation.remote import NotDone, RemoteSuperLink
from fedappeal.flower.control import UNREGISTERED, ListedRun, Node
from fedappeal.protocol.foreign_text import SHOWN_ID, one_line, printable
from fedappeal.settings.config import ConfigError
from fedappeal.views.live.live_run import LiveRun

MOST_INVITATIONS = 100
"""Invitations that are listed, the open ones first, then the latest."""
MOST_USERS = 20
"""Members that are named beside the invitation that they used."""
MOST_EARLIER = 10
"""Runs, the latest ones, in which a member's last decision is looked for."""
_LONGEST_KEY = 1000
_OPEN_COMMAND = "fedappeal federation open FOLDER --host NAME"


@dataclass
class Members:
    """A federation's members and its invitations.

    Attributes:
        superlink: registers the keys, and strikes them off.
        folder: the federation's, with its invitations; None: it was not opened in one, or not on this machine.
        admits_all: whether the SuperLink is known to ask for no registered key.
    """

    superlink: RemoteSuperLink
    folder: Path | None = None
    admits_all: bool = False
    _earlier: dict[Path, LiveRun] = field(default_factory=dict)
    _going_on: set[Path] = field(default_factory=set)

    def section(self) -> dict[str, Any]:
        """Return the page's buttons, the command that does it in place of those that are missing, and invitations."""
        registers, invites = self.superlink.root_certificates is not None and not self.admits_all, False
        listed: list[Invited] = []
        what = command = problem = ""
        try:
            invites = registers and self.folder is not None and bool(self._federation.addresses.join)
            listed = Invitations(self._federation.path).all() if invites else []
        except ConfigError as error:
            problem = printable(error)
        if not registers:
            what, command = "admit only clients that were invited (this SuperLink admits all)", _OPEN_COMMAND
        elif self.folder is None:
            what, command = "invite, in the folder of `fedappeal federation open`", "fedappeal federation invite NAME"
        elif not (invites or problem):
            what = "invite, set join-address and enable-supernode-auth in federation.toml"
            command = "fedappeal federation open FOLDER"
        latest = sorted(listed, key=lambda one: (one.status != invitations.OPEN, -one.number))
        return {
            "invite": invites,
            "register": registers,
            "commands": [{"what": what, "command": command}] if what else [],
            "problem": problem,
            "invitations": [_invitation(one) for one in latest[:MOST_INVITATIONS]],
            "most-uses": invitations.MOST_USES,
        }

    def last_decisions(
        self, runs: Sequence[tuple[ListedRun, Path]], known: Sequence[Node], under_way: Callable[[ListedRun], bool]
    ) -> dict[int, str]:
        """Return what each node did last in these runs, in words, by its id.

        Of the runs that were not read yet one is read, so that a page is not held up.

        Args:
            runs: with their folders, the latest first.
            known: the SuperLink's nodes.
            under_way: whether a run goes on, and is read again.
        """
        last: dict[int, str] = {}
        latest = runs[:MOST_EARLIER]
        earlier = self._earlier = {path: self._earlier[path] for _, path in latest if path in self._earlier}
        if unread := next((path for _, path in latest if path not in earlier), None):
            earlier[unread] = LiveRun(unread)
        for run, path in latest:
            if path not in earlier:
                continue
            if path == unread or path in self._going_on:
                earlier[path].read()
            (self._going_on.add if under_way(run) else self._going_on.discard)(path)
            earlier[path].clients.nodes = known
            where = f"{one_line(path.name, 60)} ({one_line(run.strategy, 40)} on {one_line(run.task, 40)})"
            for node, decision, number in earlier[path].clients.last_decisions():
                last.setdefault(node, f"{decision} in round {number} of {where}")
        return last

    def invite(self, body: Mapping[str, Any]) -> str:
        """Return a new invitation's line, which is shown this once."""
        uses = str(body.get("uses", 1))
        if not (uses.isascii() and uses.isdigit() and len(uses) < 10):
            raise ConfigError(f"uses = '{uses}' is not allowed: 1 to {invitations.MOST_USES}")
        return str(invitations.invite(self._federation, _text(body, "name"), int(uses), _text(body, "expires", "7d")))

    def withdraw(self, body: Mapping[str, Any]) -> str:
        """Take an open invitation back; return a confirmation."""
        invitations.withdraw(self._federation, name := _text(body, "name"))
        return f"the invitation of {name} is withdrawn"

    def register(self, body: Mapping[str, Any]) -> str:
        """Register a public key; return a confirmation."""
        line, name = _text(body, "key", longest=_LONGEST_KEY), one_line(_text(body, "name"), SHOWN_ID)
        key = nodes.PublicKey.parse(line.encode(), "what was pasted", "")
        if not (name := name or one_line(key.name, SHOWN_ID)):
            raise ConfigError("name is missing: what the client is called")
        outcome = nodes.register(self.superlink, nodes.PublicKey(key.pem, name))
        if outcome == UNREGISTERED:
            raise NotDone(f"{key.client_id} was unregistered once, and no key comes back: a new one is needed")
        return f"{name} ({key.client_id}) is {outcome}"

    def unregister(self, body: Mapping[str, Any]) -> str:
        """Strike a node off, which is named by its id alone; return a confirmation."""
        named = _text(body, "node")
        members = [node for node in self.superlink.nodes() if node.status != UNREGISTERED]
        client_id = next((node.client_id for node in members if str(node.node_id) == named), None)
        if client_id is None:
            raise NotDone("there is no such member any more")
        member = nodes.unregister(self.superlink, client_id)
        return f"{one_line(member.name, SHOWN_ID)} ({client_id}) is unregistered for good"

    @property
    def _federation(self) -> FederationFolder:
        opened = FederationFolder.find(self.folder) if self.folder else None  # read again: its address may change
        if opened is None:
            raise NotDone(f"invitations are made where the federation was opened ({_OPEN_COMMAND})")
        return opened


CHANGES: Mapping[str, Callable[[Members, Mapping[str, Any]], str]] = {
    "invite": Members.invite,
    "withdraw": Members.withdraw,
    "register": Members.register,
    "unregister": Members.unregister,
}
"""What an operator changes from the page, by the button's name."""


def _text(body: Mapping[str, Any], key: str, default: str = "", longest: int = 100) -> str:
    """Return a text of a button's body; ConfigError for another kind, or a longer one."""
    value = body.get(key, default)
    if not isinstance(value, str) or len(value) > longest:
        raise ConfigError(f"{key} is not allowed: a text of at most {longest} characters")
    return value


def _invitation(one: Invited) -> dict[str, Any]:
    names = [printable(name, SHOWN_ID) for _, name in one.keys]
    return {
        "name": one.name,
        "status": one.status,
        "uses": one.uses,
        "used": len(names),
        "expires": datetime.fromtimestamp(one.expires, UTC).isoformat(),
        "by": names[-MOST_USERS:],
    }
