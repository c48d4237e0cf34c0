"""The key in a client's state folder, and what the client proves with it in the roll call.

A client whose node has a key of its own (``--key``) needs none: the SuperLink checks that one at each call.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from flwr.app import ConfigRecord, RecordDict

from fedappeal.protocol import keys, proof
from fedappeal.settings.config import ConfigError
from fedappeal.system.files import replace_file
from fedappeal.system.locks import changing
from fedappeal.system.plain_files import descriptor

FILE = "identity.key"
_CONNECTION = "connection"


def own_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in a state folder, made on first use and its owner's alone.

    Raises:
        ConfigError: the file cannot be read, or written.
    """
    path = folder / FILE
    try:
        with changing(folder):  # a stock SuperNode may answer two roll calls at once: the first key stays
            if not path.exists():
                _make(path)
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"state-dir = '{folder}' is not allowed: {FILE}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(
            f"file '{path}' is damaged: it holds no key on P-256. Put back a copy, or remove it: the client then has "
            f"a new key, and the operator has to let its id pass (fedappeal federation release)"
        )
    return key


def _make(path: Path) -> None:
    """Make a key; where there are no locks and another has made one meanwhile, that one stays."""
    fresh = ec.generate_private_key(ec.SECP256R1())
    new = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    replace_file(new, fresh.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    with descriptor(path.parent) as folder:
        os.fsync(folder)


def note_connection(state: RecordDict, fingerprint: str, lasting: bool, superlink: str = "") -> None:
    """Note in a context's state its node's SuperLink and key, and whether the key outlives the process."""
    state[_CONNECTION] = ConfigRecord({"key": fingerprint, "lasting": int(lasting), "superlink": superlink})


def superlink_of(state: RecordDict) -> str:
    """Return the SuperLink that a context's node is connected to.

    Empty where it is not known, as under a stock SuperNode.
    """
    noted = state.get(_CONNECTION)
    return str(noted.get("superlink", "")) if isinstance(noted, ConfigRecord) else ""


def proof_of(
    config: Mapping[str, object], client_id: str, folder: Path | None, state: RecordDict
) -> dict[str, str | bytes]:
    """Return the proof that a roll-call reply carries.

    Empty where it carries none. What is signed names the key of the connection, so that no server can pass the proof
    on to another one. A process that does not know that key, as under a stock SuperNode, signs nothing: all else that
    it knows, a server chose.

    Args:
        config: of the roll call.
        client_id: what the client is called.
        folder: its state folder; None: it has none, and its connection's key is all that it has.
        state: of its context.

    Raises:
        ValueError: the server asks for a signature of something else.
    """
    nonce, run_key = config.get(keys.NONCE, ""), config.get(keys.RUN_KEY, "")
    noted = state.get(_CONNECTION)
    connection = noted if isinstance(noted, ConfigRecord) else ConfigRecord()
    if not folder or not nonce or connection.get("lasting") or "key" not in connection:
        return {}
    if not isinstance(nonce, str) or not proof.is_nonce(nonce):
        raise ValueError(f"{keys.NONCE} is not allowed: 32 hex digits")
    if not isinstance(run_key, str) or not keys.is_run_key(run_key):
        raise ValueError(f"{keys.RUN_KEY} is not allowed: up to 64 letters, digits, '-', '_' and '.'")
    key = own_key(folder)
    stated = proof.statement(nonce, run_key, str(connection["key"]), client_id)
    return {
        keys.PUBLIC_KEY: proof.public_pem(key.public_key()).decode(),
        keys.SIGNATURE: proof.sign(key, stated),
    }
