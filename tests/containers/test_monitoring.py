"""What Prometheus and Grafana read: files that agree with the metrics that there are, and with the compose file."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docker" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "fedappeal.json").read_text())
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture
def names(tmp_path: Path) -> set[str]:
    """The name of every sample that a run, a SuperLink's connections and a client have, as Prometheus reads them."""
    prometheus = pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    from client.state.activity import Activity
    from fedappeal.record.lines import CONFIG, HISTORY, append_lines
    from fedappeal.views.metrics.client_metrics import ClientMetrics
    from fedappeal.views.metrics.run_metrics import FolderMetrics

    settings = {"task": "digits", "seed": 3, "strategy": "maxfl", "rounds": 9}
    (tmp_path / CONFIG).write_text(json.dumps({"settings": settings}))
    append_lines(tmp_path / HISTORY, [{"round": 1, "accuracy": 0.5}])
    Activity(tmp_path).answered("a", {}, done="joined")
    return {
        sample.name
        for registry in (FolderMetrics(lambda: tmp_path, lambda: 1), ClientMetrics(tmp_path))
        for family in text_string_to_metric_families(prometheus.generate_latest(registry).decode())
        for sample in family.samples
    }


def test_every_metric_that_the_dashboard_names_exists(names: set[str]) -> None:
    named = {name for query in queries() for name in re.findall(r"\bfedappeal_\w+", query)}
    assert len(named) > 15
    assert named - names == set()


def test_the_labels_that_the_dashboard_shows_exist(names: set[str]) -> None:
    legends = [target["legendFormat"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown = {label for legend in legends for label in re.findall(r"\{\{(\w+)\}\}", legend)}
    assert shown == {"decision", "metric", "direction", "reason", "done"}


def test_every_panel_asks_the_source_that_is_provisioned() -> None:
    source = (MONITORING / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text()
    (uid,) = re.findall(r"^    uid: (\w+)$", source, re.MULTILINE)
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    asked = {each["datasource"]["uid"] for panel in panels for each in (panel, *panel["targets"])}
    assert asked == {uid}
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert "url: http://prometheus:9090\n" in source


def test_prometheus_asks_services_that_there_are_at_a_port_that_is_not_published() -> None:
    text = (MONITORING / "prometheus.yml").read_text()
    for service in re.findall(r"names: \[(\w+)\]", text):
        assert f"\n  {service}:\n" in COMPOSE
    assert set(re.findall(r"port: (\d+)", text)) == {"9464"}
    assert "9464" not in COMPOSE  # it is said in .env, and published nowhere


def test_every_mounted_file_is_there() -> None:
    mounted = re.findall(r"- (\./docker/[\w./-]+):", COMPOSE)
    assert len(mounted) == 3
    assert [path for path in mounted if not (ROOT / path).exists()] == []


def test_compose_reads_the_profile() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("no docker compose here")
    said = subprocess.run(
        ["docker", "compose", "--profile", "monitoring", "config", "--services"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(said.stdout.split()) == {
        *("certs", "superlink", "client", "federation", "invitations", "page", "prometheus", "grafana")
    }
