"""Each container is confined: no rights, read-only files, bounds; and what it writes is for its user alone."""

import json

from tests.docker.federation import Federation, docker, wait_until


def test_containers_are_bounded_and_write_where_they_may_and_for_their_user_alone(federation: Federation) -> None:
    run = federation.run("confined", "--rounds", "1")
    run.finished()
    for container in (federation.container("superlink"), federation.clients()[0]):
        host = json.loads(docker("inspect", container))[0]["HostConfig"]
        assert host["ReadonlyRootfs"] is True
        assert host["Memory"] == (4 << 30 if "superlink" in container else 2 << 30)
        assert host["PidsLimit"] == 512
        for folder in ("/opt/fedappeal", "/etc", "/var/tmp"):
            assert "Read-only file system" in docker("exec", container, "touch", f"{folder}/new", check=False)
        own = "/federation/superlink /runs/confined" if "superlink" in container else "/federation/clients"
        open_to_others = docker("exec", container, "sh", "-c", f"find {own} -perm /077 ! -type l")
        assert open_to_others == ""
        assert docker("exec", container, "sh", "-c", f"find {own} -type f | head -n 1") != ""


def test_every_container_that_serves_is_healthy(federation: Federation) -> None:
    serving = [federation.container("superlink"), *federation.clients()]
    assert len(serving) == 5
    wait_until(lambda: {federation.health(name) for name in serving} == {"healthy"}, "all are healthy", 90)
