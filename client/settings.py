"""What one client is told by its owner: its data, its device, its policy, its connection.

`NodeSettings` are the keys of Flower's node configuration, so a stock ``flower-supernode --node-config "..."``,
the simulation runtime and the long-lived process all give a client the same settings.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from client.data.columns import Columns, is_table
from fedappeal.core.plugins import ALL, Allowed
from fedappeal.protocol.keys import CLIENT_IDS, is_client_id
from fedappeal.settings.config import ConfigError, NonNegative, Scalar, Settings, plugin_settings, section
from fedappeal.settings.rounds import MOST_GOODWILL


class NodeSettings(Settings):
    """Settings of one client that its owner decides."""

    data: str = Field(
        "",
        description="data of one's own: a table (.csv, .parquet), an .npz with x, y, a folder of images, one folder "
        "a class, or package.module:load",
    )
    features: str = Field(
        "", description="with a table: its columns of features, by commas; empty: the task's, else all but the label"
    )
    label: str = Field("", description="with a table: its column of labels")
    role: Literal["seen", "unseen"] = Field("seen", description="with data: unseen only evaluates, and never trains")
    partition_id: Annotated[int, Field(ge=-1)] = Field(-1, description="which client of the task this one plays")
    num_partitions: Annotated[int, Field(ge=-1)] = Field(-1, description="number of clients; -1: not checked")
    allow: str | None = Field(
        None,
        description="packages, by commas, whose code may run because a run or a message names it; empty: none; "
        "not set: all, as a stock SuperNode runs whatever bundle it is sent",
    )
    participation: str = Field("", description="how this client decides, a policy; empty: as the run says")
    set: str = Field("", description="settings of that policy: NAME.KEY=VALUE, separated by spaces")
    client_id: str = Field("", description="stable id; empty: the key's fingerprint, else from the state")
    state_dir: str = Field("", description="folder of the durable state; empty: in memory")
    limits: str = Field(
        "",
        description="limits that go before those of the state folder: KEY=VALUE separated by spaces, or off; with "
        "neither limits nor a state folder there are none",
    )
    data_dir: str = Field("", description="folder with the data sets (torchvision's layout)")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$", description="auto, cpu, cuda, cuda:N")
    priority: bool = Field(False, description="this client asks to be served with priority")
    goodwill: Annotated[int, Field(ge=0, le=MOST_GOODWILL)] | None = Field(
        None,
        description="rounds of a run in which this client joins on request although the model does not meet its "
        "requirement; not set: as the run says",
    )
    refuse_mandatory: bool = Field(False, description="decide freely in mandatory rounds too: goodwill 0")
    report_loss: bool = Field(True, description="whether replies may carry losses")
    report_weight: bool = Field(
        True, description="whether a joined reply may carry what its strategy asks for besides the model"
    )
    report_appeal: bool = Field(True, description="whether replies may say that the model meets the requirement")
    answer_evaluate: bool = Field(
        True, description="whether to tell how a model does; false: number of examples alone"
    )
    answer_train_split: bool = Field(True, description="whether to tell how a model does on the training examples")
    clipping_norm: NonNegative = Field(
        0.0, description="most l2 norm of an update, whatever the run allows; 0: as the run says"
    )
    dp_epsilon: NonNegative = Field(
        0.0, description="noise on every update of at least this epsilon's, with clipping-norm; 0: as the run says"
    )
    fixed_requirement: float | None = Field(
        None, allow_inf_nan=False, description="rho_k, in place of the run's requirement; not set: the run's"
    )

    @model_validator(mode="after")
    def _noise_is_bounded(self) -> Self:
        if self.dp_epsilon and not self.clipping_norm:
            raise ValueError(f"clipping-norm = 0 is not allowed with dp-epsilon = {self.dp_epsilon:g}: more than 0")
        return self

    @model_validator(mode="after")
    def _one_goodwill(self) -> Self:
        if self.refuse_mandatory and self.goodwill:
            raise ValueError(f"goodwill = {self.goodwill} is not allowed together with refuse-mandatory: 0")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.data:
            for name, number in (("partition-id", self.partition_id), ("num-partitions", self.num_partitions)):
                if number != -1:
                    raise ValueError(
                        f"{name} = {number} is not allowed together with data = '{self.data}': "
                        f"a client has data of its own, or plays one of the task's clients"
                    )
            self._check_columns()
        elif self.features or self.label:
            raise ValueError(f"{self._columns_given()} is not allowed without data: it names columns of a table")
        elif self.role != "seen":
            raise ValueError(f"role = '{self.role}' is not allowed without data: partition-id says who is unseen")
        return self

    def _check_columns(self) -> None:
        if is_table(self.data):
            if not self.label:
                raise ValueError(f"label is missing: which column of data = '{self.data}' holds the labels")
            Columns.parse(self.features, self.label)
        elif self.features or self.label:
            given = self._columns_given()
            raise ValueError(f"{given} is not allowed with data = '{self.data}': only a .csv or .parquet has columns")

    def _columns_given(self) -> str:
        return f"label = '{self.label}'" if self.label else f"features = '{self.features}'"

    @field_validator("client_id")
    @classmethod
    def _safe(cls, value: str) -> str:
        if value and not is_client_id(value):
            raise ValueError(CLIENT_IDS)
        return value

    @property
    def columns(self) -> Columns:
        """The owner's choice of a table's columns."""
        return Columns.parse(self.features, self.label)

    def goodwill_in(self, run: int) -> int:
        """Return this client's goodwill in a run; -1: without end.

        Args:
            run: what the run says, for owners who say nothing.
        """
        if self.refuse_mandatory:
            return 0
        return run if self.goodwill is None else self.goodwill

    @property
    def allowed(self) -> Allowed:
        """The packages whose code may run here because a run or a message names it."""
        return ALL if self.allow is None else Allowed.of(self.allow.split(","))

    def own_section(self, name: str) -> dict[str, Scalar]:
        """Return the owner's settings of one plug-in, by their own keys."""
        return section(plugin_settings(self.set), name)

    def of_any_client(self) -> Self:
        """Return the settings without what names one client: equal for clients whose owners decide alike."""
        return self.model_copy(update={"data": "", "partition_id": -1, "client_id": "", "state_dir": ""})

    def check_data_source(self) -> None:
        """Check that the settings say where the data comes from.

        Raises:
            ConfigError: neither ``data`` nor ``partition-id`` is given.
        """
        if not self.data and self.partition_id < 0:
            raise ConfigError(
                "partition-id = -1 is not allowed without data: give data (your own: a table, an .npz, a folder of "
                "images) or partition-id (0 or more, which client of the task this one plays)"
            )

    def is_seen(self, clients: int) -> bool:
        """Whether this client trains, in a run with ``clients`` seen ones; else it evaluates."""
        return self.role == "seen" if self.data else self.partition_id < clients

    def as_config(self) -> dict[str, Scalar]:
        """Return all settings as scalars under their kebab-case keys, without those that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True)


class Connection(Settings):
    """How a client reaches the SuperLink's Fleet API."""

    superlink: str = Field(description="HOST:PORT of the Fleet gRPC API")
    root_certificates: str = Field("", description="CA certificate (PEM); empty: the system's")
    key: str = Field("", description="private key of the node (OpenSSH, NIST curve)")
    insecure: bool = Field(False, description="plaintext, for loopback and tests")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"superlink = '{self.superlink}' is not allowed: HOST:PORT of the Fleet API")
        for name, value in (("root-certificates", self.root_certificates), ("key", self.key)):
            if value and self.insecure:
                raise ValueError(f"{name} = '{value}' is not allowed together with insecure")
            if value and not Path(value).expanduser().is_file():
                raise ValueError(f"{name} = '{value}' is not allowed: no such file")
        return self
