"""Settings of what is learned, and of how its data is spread over the clients."""

from typing import Annotated, Literal

from pydantic import Field

from fedappeal.settings.model import Count, CountOrZero, NonNegative, Positive, Share, WithPlugins


class TaskSettings(WithPlugins):
    """What is learned, and how its data is spread over the clients.

    A partition is a pure function of these.
    """

    task: str = Field("digits", min_length=1, description="task by name, or package.module:name of your own")
    model: Literal["auto", "mlp", "logistic", "cnn"] = Field("auto", description="auto: the task's default")
    share: str = Field(
        "auto",
        min_length=1,
        description="what of the model travels; the rest stays with the client: all, trainable, or names as patterns "
        "(body.*, or !head.* for all but these); auto: as the task says, usually all",
    )
    clients: Count = Field(10, description="number of clients that train (seen)")
    unseen_clients: CountOrZero = Field(0, description="further clients that only evaluate (unseen)")
    partition: Literal["iid", "dirichlet", "shards", "clusters", "dirichlet-clusters", "natural", "auto"] = Field(
        "auto",
        description="how the data is spread over clients; auto: natural where the task is (users), else dirichlet",
    )
    dirichlet_alpha: Positive = Field(0.5, description="concentration; small is more skewed")
    shards_per_client: Count = Field(2, description="for partition = shards")
    clusters: Count = Field(
        5,
        description="for partition = clusters: clusters of labels, MaxFL appendix D.1; for dirichlet-clusters: of "
        "clients alike, a Dirichlet draw of labels each",
    )
    cluster_alpha: NonNegative = Field(
        0.0, description="for partition = clusters: Dirichlet inside a cluster; 0: even"
    )
    train_share: Annotated[float, Field(gt=0, lt=1)] = Field(0.6, description="train share of a client's data")
    min_examples: Count = Field(10, description="fewest examples a client may hold")
    max_train_examples: CountOrZero = Field(
        0, description="most examples a client trains on, the others are left out; 0: all"
    )
    flip_share: Share = Field(0.0, description="share of clients whose labels are flipped, y -> C-1-y")
    flip_on: Literal["train", "both"] = Field("both", description="flip train labels only, or test labels too")
    seed: CountOrZero = Field(0, description="seed of every draw of the run")
