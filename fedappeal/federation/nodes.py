"""The nodes of a SuperLink with node authentication: register their public keys, list them, strike them off.

A node is a public key. The SuperLink makes a random node id for it, and never lets a key that was struck off
come back.
"""

from codecs import BOM_UTF8
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import UNREGISTERED, KeyInUse, Node
from fedappeal.flower.node.signing import is_node_key, public_key_bytes
from fedappeal.protocol.proof import client_id_of
from fedappeal.settings.config import ConfigError
from fedappeal.settings.model import local_path

__all__ = ["UNREGISTERED", "PublicKey", "register", "unregister"]


@dataclass(frozen=True)
class PublicKey:
    """A client's public key.

    Attributes:
        pem: the key as the SuperLink knows it.
        name: what to call it: the comment in its file, else the file's name.
    """

    pem: bytes
    name: str

    @classmethod
    def read(cls, path: Path) -> "PublicKey":
        """Read the public half of a client's key from a file; ConfigError as `parse`."""
        try:
            content = local_path(path, "key").read_bytes()
        except OSError as error:
            raise ConfigError(f"key = '{path}' is not allowed: {error.strerror}") from None
        return cls.parse(content, f"'{path}'", path.stem)

    @classmethod
    def parse(cls, content: bytes, place: str, name: str) -> "PublicKey":
        """Return the public half of a client's key.

        Args:
            content: one line, as OpenSSH writes it.
            place: where it stands, for messages.
            name: what to call it where the line has no comment.

        Raises:
            ConfigError: if it is not one.
        """
        line = content.removeprefix(BOM_UTF8).strip()
        try:
            key = load_ssh_public_key(line) if b"\n" not in line else None
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not is_node_key(key):
            wanted = "the .pub file of an ECDSA key on a NIST curve (`fedappeal key` makes one)"
            raise ConfigError(f"key = {place} is not allowed: {wanted}")
        comment = line.decode(errors="replace").split(maxsplit=2)[2:]
        return cls(public_key_bytes(key), comment[0] if comment else name)

    @property
    def client_id(self) -> str:
        """The client-id that belongs to the key."""
        return client_id_of(self.pem)


def register(superlink: RemoteSuperLink, key: PublicKey) -> str:
    """Register a client's key, so that the SuperLink admits it.

    Args:
        superlink: the SuperLink.
        key: the key; one that is registered already stays as it is.

    Returns:
        What came of it: ``registered``, ``already registered``, or ``unregistered``: struck off once, and for ever.

    Raises:
        ControlError: if the SuperLink is not reachable or refuses for another reason.
    """
    try:
        superlink.register_node(key.pem, key.name)
    except KeyInUse:
        statuses = {node.client_id: node.status for node in superlink.nodes()}
        return UNREGISTERED if statuses.get(key.client_id) == UNREGISTERED else "already registered"
    return "registered"


def unregister(superlink: RemoteSuperLink, who: str) -> Node:
    """Strike a node off for good: its key is never admitted again.

    Args:
        superlink: the SuperLink.
        who: client-id, name or node id.

    Returns:
        The node as it was.

    Raises:
        ConfigError: if there is no such node, or more than one of that name.
        ControlError: as in `register`.
    """
    nodes = [node for node in superlink.nodes() if node.status != UNREGISTERED]
    matches = [node for node in nodes if who in (node.client_id, str(node.node_id))]
    matches = matches or [node for node in nodes if node.name == who]
    if len(matches) != 1:
        problem = "no registered node is called so" if not matches else f"{len(matches)} nodes are called so"
        raise ConfigError(f"node = '{who}' is not allowed: {problem} (client-id, node id or name, as in the list)")
    superlink.unregister_node(matches[0].node_id)
    return matches[0]
