"""Where invitations are redeemed: a port of its own, by TLS, that listens only while a key may come.

A client asks for the CA's certificate, which it compares with its invitation's fingerprint; then, by TLS that trusts
that certificate alone, what awaits it; and at last it shows the secret, beside a time that its own key has signed.
"""

import asyncio
import math
import socket
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from fedappeal.federation.invitations import UNKNOWN, Invitations, NotRedeemed
from fedappeal.federation.nodes import UNREGISTERED, PublicKey, register
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.flower.control import ControlError, ListedRun
from fedappeal.flower.node.signing import NotSigned, signed_by
from fedappeal.flower.node.tls import split_address
from fedappeal.flower.superlink.connections import serve_http
from fedappeal.flower.superlink.superlink_log import RateLimitedLog
from fedappeal.flower.superlink.superlink_process import allow_open_files
from fedappeal.protocol.foreign_text import parse_json
from fedappeal.protocol.invitation import SECRET_BYTES, JoinPath
from fedappeal.protocol.proof import client_id_of
from fedappeal.settings.config import ConfigError
from fedappeal.system.http_server import read_body
from fedappeal.web.access import BODY_WAIT

WRONG_WAITS = 1.0
"""Seconds until a wrong guess is answered; of more than `MOST_WRONG` at a time the further ones are at once."""
MOST_WRONG = 64
_MOST_BODY = 1024
_ASKED_EVERY = 5.0
"""Seconds for which the SuperLink's runs, or what became of a key, answer further requests."""
_MOST_KEPT = 256
_LOOK = 0.5
_SHOWN_RUNS = 20
_DIGEST_BYTES = 32

log = RateLimitedLog()


T = TypeVar("T")


class _LatestAnswers(Generic[T]):
    """The latest answers to some questions, each for a few seconds, so that repeated ones cost nothing.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._answers, self._lock = clock, dict[bytes, tuple[float, T]](), threading.Lock()

    def get(self, question: bytes, ask: Callable[[], T]) -> T:
        """Return the answer to a question; ask, one at a time, where there is none of late. Raises what that does."""
        with self._lock:
            since, answer = self._answers.pop(question, (-math.inf, None))
            if answer is None or self._clock() - since >= _ASKED_EVERY:
                since, answer = self._clock(), ask()
            self._answers[question] = since, answer
            if len(self._answers) > _MOST_KEPT:
                del self._answers[next(iter(self._answers))]
            return answer


class JoinApp:
    """What redeems invitations (ASGI).

    Args:
        invitations: the federation's.
        superlink: registers the keys.
        fleet: ``HOST:PORT`` of the Fleet API, as volunteers have it.
        ca: the CA's certificate (PEM).
    """

    def __init__(self, invitations: Invitations, superlink: RemoteSuperLink, fleet: str, ca: bytes) -> None:
        self._invitations, self._superlink, self._fleet, self._ca = invitations, superlink, fleet, ca
        self._wrong = 0
        self._runs, self._outcomes = _LatestAnswers[list[ListedRun]](), _LatestAnswers[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and end its connection."""
        response = await self._answer(scope, receive)
        response.headers["date"] = formatdate(usegmt=True)
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        asked = (scope["method"], scope["path"])
        if asked == ("GET", JoinPath.CA):
            return Response(self._ca)
        act = {("POST", JoinPath.LOOK): self._look, ("POST", JoinPath.REDEEM): self._redeem}.get(asked)
        if act is None:
            return PlainTextResponse("no federation's invitation\n", HTTPStatus.NOT_FOUND)
        try:
            length = Headers(scope=scope).get("content-length", "")
            body = parse_json(await read_body(receive, length, _MOST_BODY, BODY_WAIT))
            return JSONResponse(
                await run_in_threadpool(act, bytes.fromhex(body["invitation"]), dict(scope["headers"]))
            )
        except HTTPException as refused:
            return PlainTextResponse(f"{refused.detail}\n", refused.status_code)
        except NotRedeemed as refused:
            if str(refused) == UNKNOWN:
                await self._delay()
            return JSONResponse({"refused": str(refused)}, HTTPStatus.FORBIDDEN)
        except NotSigned as refused:
            return JSONResponse({"refused": str(refused)}, HTTPStatus.UNAUTHORIZED)
        except (ControlError, ConfigError) as error:
            log.warn(f"an invitation could not be redeemed: {error}")
            return JSONResponse({"refused": "away"}, HTTPStatus.SERVICE_UNAVAILABLE)
        except (ValueError, TypeError, KeyError):
            return PlainTextResponse("no such request\n", HTTPStatus.BAD_REQUEST)

    async def _delay(self) -> None:
        log.warn("a wrong invitation was refused")
        if self._wrong < MOST_WRONG:
            self._wrong += 1
            try:
                await asyncio.sleep(WRONG_WAITS)
            finally:
                self._wrong -= 1

    def _look(self, digest: bytes, headers: dict[bytes, bytes]) -> dict[str, Any]:
        """Say to the holder of an open invitation what awaits it."""
        if len(digest) != _DIGEST_BYTES:
            raise NotRedeemed(UNKNOWN)
        invited = self._invitations.look(digest, _signer(headers))
        runs = [run for run in self._runs.get(b"", self._superlink.runs) if not run.ended][-_SHOWN_RUNS:]
        return {"name": invited.name, "runs": [{"task": run.task, "strategy": run.strategy} for run in runs]}

    def _redeem(self, secret: bytes, headers: dict[bytes, bytes]) -> dict[str, Any]:
        """Register the key that signed the request."""
        if len(secret) != SECRET_BYTES:
            raise NotRedeemed(UNKNOWN)
        key = signed_by(headers)
        name = self._invitations.redeem(secret, key)
        outcome = self._outcomes.get(key, lambda: register(self._superlink, PublicKey(key, name)))
        if outcome == UNREGISTERED:
            raise NotRedeemed(UNREGISTERED)
        print(f"{name} joined ({client_id_of(key)})", flush=True)
        return {"superlink": self._fleet, "name": name, "client-id": client_id_of(key)}


def _signer(headers: dict[bytes, bytes]) -> bytes:
    """Return the key that signed a request; empty: none did."""
    try:
        return signed_by(headers)
    except NotSigned:
        return b""


def serve_invitations(
    invitations: Invitations, app: JoinApp, address: str, tls: tuple[str, str], alive: Callable[[float], None]
) -> None:
    """Serve invitations for ever, whenever one is open.

    Args:
        invitations: these.
        app: redeems them.
        address: ``HOST:PORT`` of this machine.
        tls: files of the server's certificate and private key.
        alive: called while all is well; the next call comes within that many seconds.

    Raises:
        OSError: the port is in use.
    """
    allow_open_files()
    host, port = split_address(address)
    family, server = socket.AF_INET6 if ":" in host else socket.AF_INET, None
    while True:
        listens = invitations.listens()
        if listens and server is None:
            server = serve_http(app, socket.create_server((host, port), family=family, backlog=1024), *tls)
            server.config.timeout_graceful_shutdown = 1
            print(f"invitations are redeemed at {address}", flush=True)
        elif not listens and server is not None:
            server.should_exit, server = True, None
            print(f"no invitation is open: {address} is closed", flush=True)
        alive(20 * _LOOK)
        time.sleep(_LOOK)
