"""Promise: another user of this machine cannot shut you out of your own page, its Stop button included."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedappeal.web.serving import PagePlace, ServedPage, serve_page
from tests.hostile.test_other_users import NOBODY
from tests.web.pages import small_page

IDLE = """
import encodings.idna, os, select, socket, sys  # before the files of the owner are out of reach
port, uid = map(int, sys.argv[1:])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(70)]
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for ended in select.select(idle, [], [], 0.01)[0]:  # in place of each that ends comes another
        idle.remove(ended)
        ended.close()
        idle.append(socket.create_connection(("127.0.0.1", port)))
"""


@contextmanager
def neighbour(page: ServedPage, uid: int) -> Iterator[None]:
    """Have 70 idle sockets of a user at a page."""
    port = page.address.rpartition(":")[2]
    attacker = subprocess.Popen(
        [sys.executable, "-c", IDLE, port, str(uid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "ready\n"
        yield
    finally:
        attacker.kill()
        attacker.communicate(timeout=10)


def asked(page: ServedPage) -> list[int]:
    """What the owner gets who visits the page five times, and then stops the run."""
    headers = {"Authorization": f"Bearer {page.token}", "Origin": f"http://{page.address}"}
    url = f"http://{page.address}"
    visits = [httpx.get(url, headers=headers, trust_env=False, timeout=30).status_code for _ in range(5)]
    return [*visits, httpx.post(f"{url}/stop", headers=headers, trust_env=False, timeout=30).status_code]


def stop(request: Request) -> Response:
    return PlainTextResponse("stopped")


def test_idle_sockets_of_another_user_leave_the_owner_places() -> None:
    with (
        serve_page(small_page(Route("/stop", stop, methods=["POST"])), PagePlace(0)) as page,
        neighbour(page, NOBODY),
    ):
        assert asked(page) == [200] * 6


def test_one_other_user_leaves_places_to_a_third() -> None:
    with serve_page(small_page(), PagePlace(0)) as page, neighbour(page, NOBODY):
        third = [sys.executable, "-c", VISIT, page.url, str(NOBODY - 1)]
        visit = subprocess.run(third, capture_output=True, text=True, timeout=60)
        assert (visit.stdout, visit.stderr) == ("200\n", "")


VISIT = """
import encodings.idna, os, sys, time, urllib.request
url, uid = sys.argv[1], int(sys.argv[2])
os.setgid(uid)
os.setuid(uid)
address, token = url.split("/?token=")
request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
opener, until = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + 20
while True:  # as a person does who reloads the page: on a loaded machine a connection may be reset among the others
    try:
        print(opener.open(request, timeout=30).status)
        break
    except OSError:
        if time.monotonic() > until:
            raise
        time.sleep(0.2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whose a socket is")
def test_the_owners_own_sockets_are_bounded_too() -> None:
    with (
        serve_page(small_page(), PagePlace(0)) as page,
        neighbour(page, os.geteuid()),
        pytest.raises(httpx.TransportError),
    ):
        asked(page)
