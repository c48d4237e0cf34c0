"""A federation without processes, whose members a page changes: its folder is real, its SuperLink a list of nodes."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from fedappeal.federation.certificates import make_key, write_certificates
from fedappeal.federation.folder import Addresses
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import UNREGISTERED, ControlError, KeyInUse, ListedRun, Node
from fedappeal.protocol.proof import client_id_of

SEEN = "2026-11-22T09:00:59+00:00"


@dataclass(frozen=True)
class SuperLinkOfMembers(RemoteSuperLink):
    """A SuperLink's answers about its nodes; `away`: it does not answer."""

    address: str = "127.0.0.1:9"
    root_certificates: bytes | None = b"a CA's"
    listed: list[Node] = field(default_factory=list)
    submitted: list[ListedRun] = field(default_factory=list)
    away: list[bool] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def _answer(self) -> None:
        if self.away:
            raise ControlError("the SuperLink does not answer", unreachable=True)

    def nodes(self) -> list[Node]:
        self._answer()
        return list(self.listed)

    def runs(self) -> list[ListedRun]:
        self._answer()
        return list(self.submitted)

    def register_node(self, public_key: bytes, name: str) -> None:
        self._answer()
        client_id = client_id_of(public_key)
        with self.lock:
            if any(node.client_id == client_id for node in self.listed):
                raise KeyInUse("in use")
            self.listed.append(Node(client_id, 10**18 + len(self.listed), name, "registered", SEEN, ""))

    def unregister_node(self, node_id: int) -> None:
        self._answer()
        with self.lock:
            for place, node in enumerate(self.listed):
                if node.node_id == node_id and node.status != UNREGISTERED:
                    self.listed[place] = replace(node, status=UNREGISTERED)
                    return
        raise ControlError("no such node")


def an_opened_folder(folder: Path, join: str = "fed.example.org:9094") -> Path:
    """Make a federation's folder as `fedappeal federation open` leaves it."""
    write_certificates(folder / "certs", [], [], 30)
    Addresses("127.0.0.1:9", "certs/ca.crt", "fed.example.org:9092", join).write(folder)
    return folder


def a_public_key(folder: Path, name: str) -> str:
    """Make a client's key, and return the line of its public half."""
    make_key(folder / f"{name}.key", name)
    return (folder / f"{name}.pub").read_text()
