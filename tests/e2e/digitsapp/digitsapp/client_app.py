"""The client, as in Flower's scikit-learn quickstart; two lines are changed."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from digitsapp.task import LABELS, load_data, model_of
from fedappeal.clientapp import volunteer  # changed

app = ClientApp()


def client_of(message: Message, context: Context):  # type: ignore[no-untyped-def]
    """Return the model that was sent, and the client's data."""
    config, place = context.run_config, context.node_config
    arrays = message.content["arrays"].to_numpy_ndarrays()
    model = model_of(str(config["penalty"]), int(config["local-epochs"]), arrays)
    return model, *load_data(int(place["partition-id"]), int(place["num-partitions"]))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on the client's data."""
    model, images, _, labels, _ = client_of(message, context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not converge in a few epochs
        model.fit(images, labels)
    loss = log_loss(labels, model.predict_proba(images), labels=LABELS)
    metrics = MetricRecord({"num-examples": len(images), "train_logloss": loss})
    content = RecordDict({"arrays": ArrayRecord([model.coef_, model.intercept_]), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on the client's data."""
    model, _, images, _, labels = client_of(message, context)
    loss = log_loss(labels, model.predict_proba(images), labels=LABELS)
    metrics = {"num-examples": len(images), "test_logloss": loss, "accuracy": model.score(images, labels)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


app = volunteer(app, goodwill=1)  # changed
