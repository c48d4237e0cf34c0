"""A ClientApp written for Flower's FedAvg, which knows no volunteers, takes part under stock SuperNodes."""

import textwrap
from pathlib import Path

import numpy as np
import pytest

from fedappeal.federation.superlink import SuperLink
from fedappeal.flower.versions import SUPERNODE_SPEAKS_HTTP
from fedappeal.record.lines import MODEL
from fedappeal.record.reader import Record
from fedappeal.system.files import read_safetensors, write_safetensors
from tests.e2e.conftest import BIN, Marked
from tests.ports import free_port
from tests.warm import MARK, warm_superlinks

pytestmark = pytest.mark.e2e

APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    own = int(context.node_config["partition-id"])
    arrays = {name: array.numpy() + (own + 1) for name, array in message.content["arrays"].items()}
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(values.astype(np.float32)) for name, values in arrays.items()}),
            "metrics": MetricRecord({"num-examples": 10 * (own + 1), "train_loss": 1.0}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 5, "accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


def test_a_clientapp_for_flowers_fedavg_takes_part(marked: Marked, tmp_path: Path) -> None:
    package, folder = tmp_path / "code" / "foreignapp", tmp_path / "run"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "app.py").write_text(textwrap.dedent(APP))
    initial = tmp_path / "initial.safetensors"
    arrays = {"layer.weight": np.zeros((2, 3), np.float32), "layer.bias": np.ones(2, np.float32)}
    write_safetensors(initial, arrays, {})
    environment, http = {MARK: marked.mark}, SUPERNODE_SPEAKS_HTTP
    with warm_superlinks(), SuperLink(tmp_path / "superlink", environment=environment, http=http) as superlink:
        env = {"PYTHONPATH": f"{marked.env['PYTHONPATH']}:{package.parent}"}
        nodes = [
            marked.start(
                str(BIN / "flower-supernode"),
                *("--insecure", "--superlink", superlink.stock_address, "--host", "127.0.0.1"),
                *("--port", str(free_port()), "--node-config", f"partition-id={k} num-partitions=2"),
                log=tmp_path / f"supernode{k}.log",
                env=env,
                warm=True,
            )
            for k in range(2)
        ]
        done = marked.run(
            str(BIN / "fedappeal"),
            *("submit", "--superlink", superlink.control_address, "--clientapp", "foreignapp.app:app"),
            *("--strategy", "fedavg", "--participation", "always", "--rounds", "1", "--no-pack"),
            *("--round-timeout", "600"),
            # Else the run begins without a SuperNode that comes 30 s after the other, as on a busy machine.
            *("--clients", "2", "--min-clients", "2"),
            *("--initial-model", str(initial), "--out", str(folder)),
            warm=True,
        )
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(80)
        marked.end_executors()
        assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "supernode0.log").read_text()[-2000:]
    record = Record(folder)
    rounds = [(r["joined"], r["absent"], r["failed"], r["evaluated"], r["accuracy"]) for r in record.history]
    # A client whose reply did not come is left out; its decision's line says why.
    assert rounds == [(2, 0, 0, 2, 0.5)], [
        *record.decisions,
        (tmp_path / "superlink" / "superlink.log").read_text()[-4000:],
    ]
    # They are known by their node ids.
    enrolled = {e["client"] for e in record.events if e["event"] == "enrolled"}
    assert len(enrolled) == 2
    assert all(client.isdigit() for client in enrolled)
    assert {line["client-id"] for line in record.decisions} == enrolled
    # Weighted by examples, a round moves every value by (10 * 1 + 20 * 2) / 30.
    model, _ = read_safetensors(folder / MODEL)
    for name, start in arrays.items():
        np.testing.assert_allclose(model[name], start + 50 / 30, rtol=1e-6)
