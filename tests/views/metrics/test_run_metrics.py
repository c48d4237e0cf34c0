"""A run's metrics: read back by Prometheus' own parser, beside the lines of the run's folder."""

import json
import shutil
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedappeal.cli.command_observers import CommandObservers
from fedappeal.cli.start import start_local, start_simulations, submit_run
from fedappeal.federation.remote import RemoteSuperLink
from fedappeal.protocol.metric import Metric
from fedappeal.record.decisions import pack_decisions
from fedappeal.record.lines import CONFIG, EVENTS, HISTORY, PARTICIPATION, append_lines, rewrite, seal_lines
from fedappeal.record.reader import Record
from fedappeal.runs.launch.in_process import InProcess
from fedappeal.runs.launch.superlink import LocalProcesses, Submission
from fedappeal.runs.plan import swept_plans
from fedappeal.settings.config import ConfigError
from fedappeal.simulation.options import Simulation
from fedappeal.system.validity import Validity
from fedappeal.views.live.actions import ForeignRun
from fedappeal.views.live.view import View
from fedappeal.views.metrics.run_metrics import KINDS, OTHER, kind_of
from fedappeal.views.metrics.serving import MetricsPort
from fedappeal.views.terminal.view import RunView
from strategies.rounds.exchange.exchange import NO_ANSWER
from tests.ports import free_port
from tests.views.comparison.recorded import a_run
from tests.views.live.test_view import SUPERLINK, SuperLinkOfTests, a_listed_run
from tests.views.live.test_view import superlink as superlink
from tests.warm import warm_superlinks

parser = pytest.importorskip("prometheus_client.parser", reason="the extra metrics is not installed")
exposition = pytest.importorskip("prometheus_client.exposition", reason="the extra metrics is not installed")


def samples(registry: Any) -> dict[str, float]:
    """Every sample by its name with labels, as Prometheus reads the text."""
    return parsed(exposition.generate_latest(registry).decode())


def parsed(text: str) -> dict[str, float]:
    return {
        name(sample.name, sample.labels): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def name(metric: str, labels: dict[str, str]) -> str:
    return metric + "".join(f"|{value}" for _, value in sorted(labels.items()))


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    settings = {"task": "digits", "seed": 3, "strategy": "maxfl", "rounds": 9}
    metric = Metric("f1").as_record()
    (tmp_path / CONFIG).write_text(json.dumps({"settings": settings, "metric": metric}))
    return tmp_path


def line(number: int, **more: Any) -> dict[str, Any]:
    counts = {"asked": 5, "joined": 3, "sat_out": 1, "left": 0, "failed": 1, "surplus": 0}
    return {"round": number, **counts, "bytes_up": 100, "bytes_down": 50, "seconds": 0.5, **more}


def metrics_of(folder: Path, count: int | None = None) -> Any:
    from fedappeal.views.metrics.run_metrics import FolderMetrics

    return FolderMetrics(lambda: folder, (lambda: count) if count is not None else None)


def test_metrics_are_chosen_by_name(run_folder: Path) -> None:
    append_lines(run_folder / HISTORY, [line(1)])
    chosen = metrics_of(run_folder, 2).restricted_registry(["fedappeal_clients_connected", "fedappeal_rounds_total"])
    assert samples(chosen) == {"fedappeal_clients_connected": 2.0, "fedappeal_rounds_total": 1.0}


@pytest.mark.parametrize("odd", ["x", [], {}, 10**400])
def test_a_value_that_is_no_number_leaves_the_others(run_folder: Path, odd: object) -> None:
    settings = {**Record(run_folder).settings, "rounds": odd}
    (run_folder / CONFIG).write_text(json.dumps({"settings": settings}))
    append_lines(run_folder / HISTORY, [line(1, loss=odd, accuracy=0.5), line(2, loss=1.5, asked=odd)])
    shown = samples(metrics_of(run_folder))
    assert (shown["fedappeal_rounds_total"], shown["fedappeal_asked_total"], shown["fedappeal_model_loss"]) == (
        2,
        5,
        1.5,
    )
    assert shown["fedappeal_rounds_planned"] == 0


def test_a_run_that_is_removed_is_shown_no_more(run_folder: Path) -> None:
    registry, content = metrics_of(run_folder), Record(run_folder).config
    for run_key, rounds in (("a" * 16, 3), ("b" * 16, 2)):
        (run_folder / CONFIG).write_text(json.dumps({**content, "run-key": run_key}))
        append_lines(run_folder / HISTORY, [line(number + 1) for number in range(rounds)])
        assert samples(registry)["fedappeal_rounds_total"] == rounds
        (run_folder / HISTORY).unlink()
    (run_folder / CONFIG).unlink()
    assert samples(registry) == {}


def test_a_certificates_end_is_a_metric_where_there_is_one(run_folder: Path) -> None:
    from fedappeal.views.metrics.run_metrics import FolderMetrics

    end = datetime(2027, 1, 2, tzinfo=UTC)
    registry = FolderMetrics(lambda: run_folder, validity=lambda: Validity(end - timedelta(days=9), end))
    assert samples(registry)["fedappeal_certificate_end_seconds"] == 1798848000  # date --date=2027-01-02Z +%s
    assert "fedappeal_certificate_end_seconds" not in samples(metrics_of(run_folder))


def test_a_runs_metrics_are_sums_over_its_lines(run_folder: Path) -> None:
    registry = metrics_of(run_folder, 4)
    # What b writes of its own failure does not make it absent.
    failures = {"a": NO_ANSWER, "b": NO_ANSWER, "c": "loss = nan is not a finite number", "d": "<b>what it says</b>"}
    decisions = dict.fromkeys("abcd", "failed") | {"a": "absent", "e": "joined"}
    append_lines(run_folder / EVENTS, [{"event": "enrolled", "enrolled": 5}, {"event": "round", "round": 1}])
    append_lines(run_folder / PARTICIPATION, [pack_decisions(1, decisions)])
    append_lines(run_folder / HISTORY, [line(1, absent=1, failures=failures), line(2, gm_appeal=0.25, loss=1.5)])
    found = samples(registry)
    expected = {
        "fedappeal_run_info|3|maxfl|digits": 1,
        "fedappeal_rounds_planned": 9,
        "fedappeal_round": 2,
        "fedappeal_rounds_total": 2,
        "fedappeal_round_seconds_sum": 1.0,
        "fedappeal_round_seconds_count": 2,
        "fedappeal_bytes_total|up": 200,
        "fedappeal_bytes_total|down": 100,
        "fedappeal_asked_total": 10,
        "fedappeal_decisions_total|joined": 6,
        "fedappeal_round_decisions|sat_out": 1,
        "fedappeal_decisions_total|absent": 1,
        "fedappeal_failures_total|not-finite": 1,
        "fedappeal_failures_total|other": 2,
        "fedappeal_clients_enrolled": 5,
        "fedappeal_clients_connected": 4,
        "fedappeal_model_gm_appeal": 0.25,
        "fedappeal_model_loss": 1.5,
        "fedappeal_run_running": 1,
    }
    assert {key: found[key] for key in expected} == expected
    append_lines(run_folder / HISTORY, [line(3)])
    append_lines(run_folder / EVENTS, [{"event": "finished", "round": 3, "reason": ""}])
    found = samples(registry)
    assert (found["fedappeal_rounds_total"], found["fedappeal_run_running"]) == (3, 0)
    assert found["fedappeal_model_loss"] == 1.5  # that of the latest evaluation


def test_a_number_that_is_not_finite_leaves_a_gauge_as_it_was(run_folder: Path) -> None:
    registry = metrics_of(run_folder)
    append_lines(run_folder / HISTORY, [line(1, loss=1.5, f1=0.25), line(2, loss=float("inf"), f1=float("nan"))])
    shown = samples(registry)
    assert (shown["fedappeal_model_loss"], shown["fedappeal_model_metric|f1"]) == (1.5, 0.25)
    assert shown["fedappeal_round"] == 2


def test_a_run_that_continues_is_counted_anew(run_folder: Path) -> None:
    registry = metrics_of(run_folder)
    append_lines(run_folder / HISTORY, [line(1), line(2), line(3)])
    assert samples(registry)["fedappeal_asked_total"] == 15
    rewrite(run_folder / HISTORY, seal_lines([line(1), line(2)]))
    append_lines(run_folder / EVENTS, [{"event": "resumed", "round": 2}])
    assert samples(registry)["fedappeal_asked_total"] == 10
    assert "fedappeal_clients_connected" not in samples(registry)


def test_beside_a_superlink_the_latest_run_is_told_and_no_other(tmp_path: Path, superlink: SuperLinkOfTests) -> None:
    from fedappeal.views.metrics.run_metrics import FolderMetrics

    def rounds() -> float | None:
        told = samples(registry)
        assert told["fedappeal_clients_connected"] == 3
        return told.get("fedappeal_rounds_total")

    first, second = a_run(tmp_path / "first", [{}] * 2), a_run(tmp_path / "second", [{}] * 3)
    registry = FolderMetrics(View(ForeignRun(), None, SUPERLINK).latest_folder, lambda: 3)
    assert rounds() is None
    superlink.runs = [a_listed_run(4, "running", first)]
    assert rounds() == 2
    assert "fedappeal_run_info|0|maxfl|digits" in samples(registry)
    superlink.away = True
    append_lines(first / HISTORY, [line(3)])
    assert rounds() == 3
    superlink.away = False
    superlink.runs.append(a_listed_run(5, "running", second))
    assert rounds() == 3
    append_lines(second / HISTORY, [line(4)])
    assert rounds() == 4
    shutil.rmtree(second)
    assert rounds() is None, "not an earlier run's figures"


def test_a_folder_that_is_not_there_yet_has_no_metrics_and_no_error(tmp_path: Path) -> None:
    registry = metrics_of(tmp_path / "run", 2)
    assert samples(registry) == {"fedappeal_clients_connected": 2}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("array 'w' has values that are not finite", "not-finite"),
        ("weight = -1.0 is not allowed: a finite number, at least 0", "malformed"),
        ("reply has no MetricRecord 'metrics'", "malformed"),
        ("its reply cannot be used: KeyError: 'x'", "malformed"),
        ("client anna: data is refused: labels out of range", "data"),
        ("its update (9) is longer than 2 (influence-norm)", "influence"),
        ("RuntimeError (the client's log says more)", "client-error"),
        ("the run has all of its 4 clients (max-clients)", "client-id"),
        ("\u202ewhatever\n", OTHER),
        (None, OTHER),
    ],
)
def test_reasons_are_of_few_kinds(reason: object, kind: str) -> None:
    assert kind_of(reason) == kind
    assert kind in KINDS


def test_no_label_holds_what_another_party_wrote(run_folder: Path) -> None:
    registry = metrics_of(run_folder)
    before = set(samples(registry))
    foreign = {f"client-{k}": f"evil {k}" for k in range(50)}
    append_lines(run_folder / HISTORY, [line(1, failures=foreign, f1=0.5)])
    append_lines(run_folder / EVENTS, [{"event": f"kind {k}", "reason": "evil"} for k in range(50)])
    append_lines(
        run_folder / EVENTS, [{"event": "refused", "client": "evil", "reason": f"evil {k}"} for k in range(9)]
    )
    assert set(samples(registry)) - before == {"fedappeal_model_metric|f1"}
    assert samples(registry)[f"fedappeal_refusals_total|{OTHER}"] == 9


def test_metrics_are_served_while_a_run_is_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = MetricsPort(free_port())
    url = f"http://127.0.0.1:{port.port}/metrics"
    seen: list[dict[str, float]] = []
    watch = CommandObservers.watch

    @contextmanager
    def watched(self: CommandObservers, *given: Any, **named: Any) -> Iterator[Any]:
        with watch(self, *given, **named) as begun:
            yield begun
            with urllib.request.urlopen(url, timeout=10) as answer:
                seen.append(parsed(answer.read().decode()))

    monkeypatch.setattr(CommandObservers, "watch", watched)
    settings = {"model": "logistic", "clients": 3, "rounds": 2, "local-steps": 2, "requirement": "fixed"}
    plans = swept_plans(settings, [], str(tmp_path / "run"))
    start_simulations(plans, InProcess(Simulation("auto", "cpu", "", 1)), CommandObservers(metrics=port))
    history = Record(tmp_path / "run").history
    assert seen[0]["fedappeal_rounds_total"] == 2
    assert seen[0]["fedappeal_bytes_total|up"] == sum(each["bytes_up"] for each in history)
    assert seen[0]["fedappeal_model_metric|accuracy"] == history[-1]["accuracy"]
    with pytest.raises(OSError):  # another process may have the port by now
        urllib.request.urlopen(url, timeout=5)


@pytest.mark.e2e
def test_a_local_federation_counts_its_connected_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int | None] = []
    monkeypatch.setattr(RunView, "summary", lambda view: found.append(len(view.rounds)))
    shown = RunView.watch

    def watch(view: RunView, kind: str, each: dict[str, Any]) -> None:
        shown(view, kind, each)
        if kind == "round":
            with urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=10) as answer:
                found.append(int(parsed(answer.read().decode())["fedappeal_clients_connected"]))

    monkeypatch.setattr(RunView, "watch", watch)
    port = MetricsPort(free_port())
    settings: dict[str, Any] = {
        "model": "logistic",
        "clients": 2,
        "rounds": 1,
        "local-steps": 2,
        "requirement": "fixed",
    }
    with warm_superlinks():
        start_local(
            settings | {"out": str(tmp_path / "run")},
            LocalProcesses(device="cpu"),
            observers=CommandObservers(metrics=port),
        )
    assert found == [2, 1]


def test_what_is_not_allowed_is_found_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"metrics-port = \d+ is not allowed: Address already in use"):
            MetricsPort(taken.getsockname()[1])
    with pytest.raises(ConfigError, match=r"metrics-port = -1 is not allowed: 1 to 65535; 0: none"):
        MetricsPort(-1)
    with pytest.raises(ConfigError, match=r"metrics-port = 65536 is not allowed: 1 to 65535; 0: none"):
        MetricsPort(65536)
    with pytest.raises(ConfigError, match=r"metrics-address = 'here' is not allowed: an address of this machine"):
        MetricsPort(1, "here")
    port = MetricsPort(free_port())
    plans = swept_plans({}, ["seed=0,1"], str(tmp_path / "sweep"))
    with pytest.raises(ConfigError, match=r"metrics-port = \d+ is not allowed with several runs"):
        start_simulations(plans, InProcess(Simulation("auto", "cpu", "", 1)), CommandObservers(metrics=port))
    launcher = Submission(RemoteSuperLink("127.0.0.1:1"), detach=True)
    with pytest.raises(ConfigError, match="metrics-port is not allowed with --detach"):
        submit_run({"out": str(tmp_path / "run")}, launcher, observers=CommandObservers(metrics=port))
    monkeypatch.setattr("fedappeal.system.packages.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedappeal\[metrics\]'"):
        MetricsPort(free_port())
    assert not (tmp_path / "sweep").exists()
