"""Clients behind a home router that forgets their connections without a word are soon back, by both transports."""

from pathlib import Path

import pytest

from tests.federation.conftest import Federation
from tests.silent_router import silent_router

pytestmark = pytest.mark.e2e


def test_clients_are_back_soon_after_a_router_forgot_their_connections(tmp_path: Path) -> None:
    federation = Federation(tmp_path, http=True)
    superlink = federation.superlink.start()
    try:
        assert federation.register("0", "1").code == 0
        with silent_router(superlink.fleet_address) as grpc, silent_router(superlink.http_address) as http:
            routers = (grpc, http)
            clients = [federation.client(n, "--superlink", router.address) for n, router in enumerate(routers)]
            for client in clients:
                client.wait_for("connected to")
            for router in routers:
                router.forget()
            for client in clients:
                client.wait_for("answers again", 60.0)
    finally:
        federation.end()
