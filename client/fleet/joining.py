"""How a client redeems an invitation: it knows the federation by its fingerprint before it shows the secret."""

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPSConnection
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from client.fleet.activation import describe
from client.fleet.probe import WRONG_NAME, unreachable
from fedappeal.flower.node.proxy import Proxy, proxy_of, tunnelled
from fedappeal.flower.node.signing import AHEAD, BEHIND, Signer, http_headers
from fedappeal.flower.node.tls import split_address, trusting, unverified_context
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.protocol.invitation import Invitation, JoinPath
from fedappeal.settings.config import ConfigError

_TIMEOUT = 10.0
_TRIES_FOR = 30.0
"""Seconds in which a busy port is tried again, and in which one try ends."""
_OPENS_WITHIN = 5.0
"""Seconds in which a federation that was just opened, or has just invited, listens."""
_MOST_ANSWER = 64 * 1024
_AGAIN = (ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLError)
_ASK = "ask the operator for a new one (fedappeal federation invite)"
_REFUSED = {
    "used": f"this invitation has been used: {_ASK}, unless it was you, on this device with another --state-dir",
    "expired": f"this invitation has expired: {_ASK}",
    "withdrawn": f"this invitation was withdrawn: {_ASK}",
    "unknown": f"the federation does not know this invitation: {_ASK}",
    "unregistered": "this device's key was unregistered, and never comes back: delete client.key in the state folder "
    "(--state-dir), and " + _ASK,
    "away": "the federation does not answer at present: try again in a minute",
    "Invalid timestamp": "this device's clock is not the federation's: set it right (timedatectl set-ntp true)",
}


class JoinPort:
    """The port where one invitation is redeemed.

    Every call raises `ConfigError`: one line that says what to do.

    Attributes:
        invitation: the invitation.
        ca: the federation's CA certificate (PEM), once `verify` has compared it.
    """

    def __init__(self, invitation: Invitation) -> None:
        self.invitation = invitation
        self.ca = b""

    def verify(self) -> None:
        """Fetch the CA's certificate, and compare it with the invitation's fingerprint; look at the clock."""
        headers, content = self._ask(unverified_context(("http/1.1",)), "GET", JoinPath.CA)
        try:
            der = ssl.PEM_cert_to_DER_cert(content.decode("ascii").strip())
        except ValueError:
            raise self._another("no federation's certificate comes from") from None
        if sha256(der).digest() != self.invitation.fingerprint:
            raise self._another("another certificate than the invitation names comes from")
        self.ca = ssl.DER_cert_to_PEM_cert(der).encode()  # this one alone, whatever stood beside it
        try:
            ahead = time.time() - parsedate_to_datetime(headers.get("date", "")).timestamp()
        except (ValueError, OverflowError):
            return
        if not -BEHIND < ahead < AHEAD + 1:
            raise ConfigError(describe(ahead, self.invitation.address))

    def look(self, key: ec.EllipticCurvePrivateKey | None) -> Mapping[str, Any]:
        """Return what awaits a holder of the invitation; the secret is not shown.

        Args:
            key: the device's, where it may have used the invitation already.
        """
        return self._answer_of(JoinPath.LOOK, self.invitation.digest, key)

    def redeem(self, key: ec.EllipticCurvePrivateKey) -> Mapping[str, Any]:
        """Show the secret, and have the key registered; return where to connect, and as whom."""
        return self._answer_of(JoinPath.REDEEM, self.invitation.secret, key)

    def _answer_of(self, path: str, word: bytes, key: ec.EllipticCurvePrivateKey | None) -> Mapping[str, Any]:
        context = trusting(self.ca)
        headers = http_headers(Signer(key).headers()) if key else {}
        _, content = self._ask(context, "POST", path, json.dumps({"invitation": word.hex()}), headers)
        try:
            answer = parse_json(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._another("no federation's answer comes from")
        if refused := answer.get("refused"):
            raise ConfigError(_REFUSED.get(str(refused), f"the federation refused: {str(refused)[:100]!r}"))
        return answer

    def _ask(
        self, context: ssl.SSLContext, method: str, path: str, body: str | None = None, headers: Any = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Return an answer's headers and content, of a bounded size; a busy port is tried again for a while."""
        began = time.monotonic()
        while True:
            try:
                status, headers_of_it, content = self._ask_in_time(context, method, path, body, headers or {})
                break
            except _AGAIN as error:
                patience = _OPENS_WITHIN if isinstance(error, ConnectionRefusedError) else _TRIES_FOR
                if isinstance(error, ssl.SSLError) or time.monotonic() >= began + patience:
                    raise self._why_unreachable(error) from None
                time.sleep(1.0)
            except OSError as error:
                raise self._why_unreachable(error) from None
        if body is None and status not in (HTTPStatus.OK, HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
            raise self._another("no federation answers at")
        return headers_of_it, content

    def _ask_in_time(self, context: ssl.SSLContext, *request: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Return an answer; TimeoutError if it is not whole in time, however often a part of it comes."""
        answer: Future[tuple[int, http.client.HTTPMessage, bytes]] = Future()

        def ask() -> None:
            try:
                host, port = split_address(self.invitation.address)
                with contextlib.closing(HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)) as connection:
                    tunnelled(connection, proxy_of(host, tls=True)).request(*request)
                    response = connection.getresponse()
                    answer.set_result((response.status, response.headers, response.read(_MOST_ANSWER)))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        return answer.result(_TRIES_FOR)

    def _why_unreachable(self, error: Exception) -> ConfigError:
        """Return why there is no answer, with what to do."""
        address, proxy = self.invitation.address, self._proxy()
        host = split_address(address)[0]
        if isinstance(error, ssl.SSLCertVerificationError):
            is_name = error.verify_code in WRONG_NAME
            what = f"a certificate for another name than '{host}'" if is_name else "another certificate"
            return self._another(f"{what} ({error.verify_message}) comes from")
        if isinstance(error, ConnectionRefusedError) and not proxy:
            return ConfigError(
                f"nothing listens at {address}, which is open only while an invitation can be used: this one may "
                f"have been used, withdrawn or expired, or the federation is not running: {_ASK}"
            )
        if isinstance(error, TimeoutError | ConnectionRefusedError) or not isinstance(error, _AGAIN):
            return ConfigError(unreachable(error, address, host, proxy))  # type: ignore[arg-type]
        return self._another("what is no federation answers at")

    def _proxy(self) -> Proxy | None:
        """Return the proxy on the way; None if there is none, or the settings name none that can be used."""
        with contextlib.suppress(OSError):
            return proxy_of(split_address(self.invitation.address)[0], tls=True)
        return None

    def _another(self, what: str) -> ConfigError:
        address, proxy = self.invitation.address, self._proxy()
        between = f"{proxy}, or another one, is in between" if proxy else "a proxy is in between"
        return ConfigError(
            f"{what} {address}: {between}, or the address leads elsewhere now: try another network, or ask "
            "the operator"
        )
