"""The operator's live page in a container: published on loopback alone, for its token and its own address."""

import json
import re

import httpx

from tests.docker.federation import Federation, docker, wait_until
from tests.ports import free_port


def test_the_page_shows_the_run_to_its_token_at_its_address_alone(federation: Federation) -> None:
    port = free_port()
    federation.environment["PAGE_PORT"] = str(port)
    federation.run("shown", "--rounds", "2").finished()
    federation.compose("up", "--detach", "--no-build", "--no-deps", "--force-recreate", "page")
    container = federation.container("page")
    try:
        wait_until(lambda: "the live page: http" in federation.logs(container), "the page's address is said", 120)
        said = re.search(r"the live page: http://(\S+)/\?token=(\S+)", federation.logs(container))
        assert said
        address, token = said.groups()
        assert address == f"127.0.0.1:{port}"
        (published,) = json.loads(docker("inspect", container))[0]["NetworkSettings"]["Ports"]["8090/tcp"]
        assert published == {"HostIp": "127.0.0.1", "HostPort": str(port)}
        known = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=30) as browser:
            assert browser.get("/").status_code == 403
            assert browser.get("/", headers=known).status_code == 200
            assert browser.get("/", headers={**known, "Host": "evil.example"}).status_code in (400, 403)
            everything = browser.get("/data.json", headers=known).json()
            assert everything["members"]["invite"]
            mine = {**known, "Origin": f"http://{address}"}
            invited = browser.post("/invite", json={"name": "laptop"}, headers=mine)
            assert (invited.status_code, invited.json()["said"][:12]) == (200, "fedappeal://")
            assert browser.post("/withdraw", json={"name": "laptop"}, headers=mine).status_code == 200
        assert everything["run"]["last"] == 2
        assert everything["clients"]["online"] == len(federation.clients())
        wait_until(lambda: federation.health(container) == "healthy", "the page is healthy", 90)
    finally:
        federation.compose("rm", "--stop", "--force", "page", check=False)
