"""Access to a page, by its token, its Host and Origin, and bounded bodies.

A page stands on loopback, where every program and every page in a browser of this machine can knock. A browser sends
whatever a foreign page makes it send, but never another ``Host`` than the foreign name (DNS rebinding), and with
everything that is no GET the ``Origin`` that asks (request forgery).
"""

import logging
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from types import MappingProxyType
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedappeal.system.http_server import read_body

log = logging.getLogger(__name__)

TOKEN = "token"  # nosec B105 # the parameter's name
"""The parameter of the printed address."""
POLICY = "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
"""Nothing is loaded from, or sent to, another machine; no script stands in a page's text."""
CHART_POLICY = f"{POLICY}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:"
"""The same with styles in the page, which Plotly's charts need."""
MOST_BODY = 64 * 1024
"""Bytes of a request's body."""
BODY_WAIT = 10.0
"""Seconds in which a request's body has to arrive."""
MOST_SESSIONS = 64
"""Visits of the printed address whose cookies count; the oldest is forgotten first."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_READING = ("GET", "HEAD")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def hosts_of(published: str) -> frozenset[str]:
    """Return the valid ``Host`` values: as published, and loopback names of its port.

    Args:
        published: ``HOST:PORT``, as a browser's address has it.
    """
    port = published.rpartition(":")[2]
    names = {published.lower(), *(f"{name}:{port}" for name in _LOOPBACK)}
    # A browser leaves out the port that http has anyway.
    return frozenset(names | ({name.rpartition(":")[0] for name in names} if port == "80" else set()))


class Guarded:
    """An ASGI app behind its token, its Host and its Origin.

    Args:
        app: what is guarded.
        token: the secret.
        published: ``HOST:PORT`` under which browsers visit it.
        policy: the Content-Security-Policy of answers that bring none of their own.
        bodies: the most bytes of a body where these are not `MOST_BODY`, by path.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        published: str,
        policy: str = POLICY,
        bodies: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._app, self._token, self._policy, self._bodies = app, token, policy, bodies
        self._hosts = hosts_of(published)
        self._origins = {f"http://{host}" for host in self._hosts}
        # Cookies know no ports: two pages on one host would share a name, and a browser sends them to every port. So
        # they hold no token, which may outlive this process, but a value that counts here alone.
        self._sessions: deque[str] = deque(maxlen=MOST_SESSIONS)
        self._cookie = f"fedappeal-page-{published.rpartition(':')[2]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":  # no page has web sockets; the server asks for no lifespan
            return
        answered = False

        async def guarded_send(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, "Content-Security-Policy": self._policy}.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            app, receive = await self._app_and_body(scope, receive)
            await app(scope, receive, guarded_send)
        except HTTPException as refused:
            answer = PlainTextResponse(f"{refused.detail}\n", refused.status_code)
            await answer(scope, receive, guarded_send)
        except Exception as error:
            log.warning("page: %s %r failed: %s: %s", scope["method"], scope["path"], type(error).__name__, error)
            if not answered:
                answer = PlainTextResponse("the page failed; its log says why\n", HTTPStatus.INTERNAL_SERVER_ERROR)
                await answer(scope, receive, guarded_send)

    async def _app_and_body(self, scope: Scope, receive: Receive) -> tuple[ASGIApp, Receive]:
        """Return the app that answers a request, and the source of its body.

        Raises:
            HTTPException: the request does not come in.
        """
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise HTTPException(HTTPStatus.FORBIDDEN, "this page has another address: visit the one that was printed")
        origins = headers.getlist("origin")
        if (origins or scope["method"] not in _READING) and (len(origins) != 1 or origins[0] not in self._origins):
            raise HTTPException(HTTPStatus.FORBIDDEN, "this page takes nothing from other pages")
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        bearer = secret.strip() if scheme.lower() == "bearer" else ""
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] in _READING and any(self._is_token(value) for name, value in asked if name == TOKEN):
            return self._welcome(scope["path"], [pair for pair in asked if pair[0] != TOKEN]), receive
        if not (self._is_token(bearer) or any(map(self._is_session, self._cookies(headers)))):
            raise HTTPException(HTTPStatus.FORBIDDEN, "this page needs its token: visit the address that was printed")
        most = self._bodies.get(scope["path"], MOST_BODY)
        body = await read_body(receive, headers.get("content-length", ""), most, BODY_WAIT)
        return self._app, _replay(body, receive)

    def _is_token(self, shown: str) -> bool:
        return _equal(shown, self._token)

    def _is_session(self, shown: str) -> bool:
        return sum(_equal(shown, session) for session in self._sessions) > 0  # each is compared

    def _cookies(self, headers: Headers) -> Iterable[str]:
        """Yield the values of a request's cookies of this page."""
        for line in headers.getlist("cookie"):
            try:
                morsel = SimpleCookie(line).get(self._cookie)
            except CookieError:
                continue
            if morsel is not None:
                yield morsel.value

    def _welcome(self, path: str, others: list[tuple[str, str]]) -> ASGIApp:
        """Return the answer to the printed address: a cookie, and the address without its token."""
        # One slash, and no backslash: two would lead to another machine.
        there = quote(f"/{path.lstrip('/')}") + (f"?{urlencode(others)}" if others else "")
        answer = RedirectResponse(there, HTTPStatus.SEE_OTHER)
        self._sessions.append(session := new_token())
        answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", path="/")
        return answer


def new_token() -> str:
    """Return a secret of 256 random bits, fit for an address."""
    return secrets.token_urlsafe(32)


def _equal(shown: str, secret: str) -> bool:
    """Whether a text equals a secret, compared in constant time."""
    return secrets.compare_digest(shown.encode("utf-8", "replace"), secret.encode())


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `Receive` that replays a read body, then continues."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
