"""The client: as for Flower's FedAvg, and a volunteer by its last line."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedappeal.clientapp import volunteer
from mineapp.task import Examples, Net, load_data
from mineapp.task import test as test_fn
from mineapp.task import train as train_fn

app = ClientApp()


def client_of(message: Message, context: Context) -> tuple[Net, Examples, Examples]:
    """Return the model that was sent, and the client's data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    trained_on, tested_on = load_data(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    return net, trained_on, tested_on


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on the client's data."""
    net, data, _ = client_of(message, context)
    loss = train_fn(net, data, int(context.run_config["local-epochs"]), float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[0])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on the client's data."""
    net, _, data = client_of(message, context)
    loss, accuracy = test_fn(net, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[0])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


app = volunteer(app, solo__steps=5)
