"""A client process whose app sends back what it gets, or does what the message's config says."""

import sys
import time

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client.process.serve import run_client
from client.settings import Connection, NodeSettings
from tests.outcomes import outcomes_of

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    if config.get("do") == "raise":
        raise ValueError("no data\nfor this")
    if config.get("do") == "leave":
        sys.exit(3)
    time.sleep(float(config.get("sleep", 0.0)))
    messages = context.state["seen"]["messages"] + 1 if "seen" in context.state else 1
    context.state["seen"] = MetricRecord({"messages": messages})
    answer = {"node-id": context.node_id, "messages": messages, **context.node_config}
    return Message(
        RecordDict(
            {
                "arrays": message.content["arrays"],
                "metrics": MetricRecord({"decision": config.get("decision", 1)}),
                "config": ConfigRecord({**answer, **{f"run.{k}": v for k, v in context.run_config.items()}}),
            }
        ),
        reply_to=message,
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)


if __name__ == "__main__":
    superlink, state_dir, timeout = sys.argv[1:]
    node = NodeSettings(partition_id=4, num_partitions=9, state_dir=state_dir)
    connection = Connection(superlink=superlink, insecure=True)
    sys.exit(run_client(node, connection, outcomes_of(app), connect_timeout=float(timeout) or None))
