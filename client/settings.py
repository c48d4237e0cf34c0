"""Settings of one client's owner: its data, its device, its policy, its connection, its process.

`NodeSettings` are the keys of Flower's node configuration, so a stock ``flower-supernode --node-config "..."``,
the simulation runtime and the long-lived process all give a client the same settings.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, FiniteFloat, StringConstraints, model_validator
from pydantic.fields import FieldInfo

from fedappeal.core.plugins import ALL, Allowed
from fedappeal.data.columns import Columns, is_table
from fedappeal.protocol.keys import CLIENT_IDS, is_client_id
from fedappeal.settings.address import check_address
from fedappeal.settings.config import ConfigError, NonNegative, Scalar, Settings, plugin_settings, section
from fedappeal.settings.model import is_reference, setting
from fedappeal.settings.rounds import MOST_GOODWILL


def _client_id(value: str) -> str:
    if value and not is_client_id(value):
        raise ValueError(CLIENT_IDS)
    return value


ANY, ASKED, LISTED = "any", "asked", "listed"
"""Runs that a client takes: all; those that its owner approves; those approved before they ask."""
GRPC, HTTP = "grpc", "http"
"""Protocols of the Fleet API."""
BUNDLE = "bundle"
"""In place of an app: that of each run's bundle."""
_SHA256 = re.compile("[0-9a-f]{64}")

Stripped = Annotated[str, StringConstraints(strip_whitespace=True)]
NumberOrNone = Annotated[int, Field(ge=-1)]
"""A number from 0; -1: none."""
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")]
ClientId = Annotated[str, AfterValidator(_client_id)]
LocalPath = Annotated[str, AfterValidator(os.path.expanduser)]


class NodeSettings(Settings):
    """Settings of one client that its owner decides."""

    data: LocalPath = ""
    """your own data: a table (.csv, .parquet), an .npz with x and y, a folder of images, one folder a class, or a
    function of yours, package.module:load"""
    features: Stripped = ""
    """with a table: its columns of features, by commas; empty: the task's, else all others"""
    label: Stripped = ""
    """with a table: its column of labels"""
    role: Literal["seen", "unseen"] = "seen"
    """with --data: seen, or unseen (evaluate only, never train)"""
    partition_id: NumberOrNone = -1
    """in place of --data: which client of the task this one plays, from 0"""
    num_partitions: NumberOrNone = -1
    """with --partition-id: how many clients the run has; -1: not checked"""
    # Not set: all packages, as a stock SuperNode runs whatever bundle it is sent.
    allow: str | None = setting(None, joined=",", variable=True)
    """a package whose code may run here because a run names it (own strategies, tasks, ...); repeatable; none:
    fedappeal's own code alone"""
    approve: Literal["any", "asked", "listed"] | None = None
    """which runs it takes: any; asked (a new one waits for `fedappeal client approve`); listed (approved before);
    without it: any, with a bundle's code asked"""
    participation: Stripped = setting("", variable=True)
    """the policy by which this client decides: a name, or package.module:Name; empty: the run's"""
    set: Stripped = setting("", joined=" ", variable=True)
    """a setting of that policy: NAME.KEY=VALUE, several by spaces, repeatable"""
    # With neither limits nor a state folder there are none.
    limits: Stripped = setting("", variable=True)
    """limits that go before those of the state folder (`fedappeal client limits` lists them): KEY=VALUE, several by
    spaces; off: none"""
    # Empty: in memory.
    state_dir: LocalPath = ""
    """folder of this client's durable state"""
    data_dir: LocalPath = ""
    """folder with the data sets (torchvision's layout)"""
    device: Device = setting("auto", variable=True)
    """auto, cpu, cuda, cuda:N"""
    client_id: ClientId = ""
    """remain this client after a new key; empty: the key's fingerprint, or the state's"""
    priority: bool = False
    """ask to be served with priority"""
    goodwill: Annotated[int, Field(ge=0, le=MOST_GOODWILL)] | None = None
    """rounds of a run that this client joins on request although the model does not meet its requirement; without it:
    as the run says"""
    refuse_mandatory: bool = False
    """decide freely in mandatory rounds too: goodwill 0"""
    report_loss: bool = True
    """whether replies may carry losses"""
    report_weight: bool = True
    """whether a joined reply may carry what its strategy asks for besides the model"""
    report_appeal: bool = True
    """whether replies may say that the model meets the requirement"""
    answer_evaluate: bool = True
    """whether to tell how a model does; no: the number of examples alone"""
    answer_train_split: bool = True
    """whether to tell how a model does on the training examples"""
    clipping_norm: NonNegative = 0.0
    """most l2 norm of an update, whatever the run allows; 0: as the run says"""
    dp_epsilon: NonNegative = 0.0
    """noise on every update of at least this epsilon's, with --clipping-norm; 0: the run's"""
    fixed_requirement: FiniteFloat | None = None
    """training loss the global model must beat, in place of the run's requirement"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.asks and not self.state_dir:
            raise ValueError(f"approve = '{self.approve}' is not allowed without state-dir: what is approved is kept")
        if self.dp_epsilon and not self.clipping_norm:
            raise ValueError(f"clipping-norm = 0 is not allowed with dp-epsilon = {self.dp_epsilon:g}: more than 0")
        if self.refuse_mandatory and self.goodwill:
            raise ValueError(f"goodwill = {self.goodwill} is not allowed together with refuse-mandatory: 0")
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
            names = self._columns_given()
            raise ValueError(
                f"{names} is not allowed with data = '{self.data}': only a table has columns (.csv, .jsonl, .parquet)"
            )

    def _columns_given(self) -> str:
        return f"label = '{self.label}'" if self.label else f"features = '{self.features}'"

    @property
    def asks(self) -> bool:
        """Whether it takes approved runs alone."""
        return self.approve not in (None, ANY)

    @property
    def state_folder(self) -> Path | None:
        """The folder of the client's durable state.

        None where the state is in memory.
        """
        return Path(self.state_dir) if self.state_dir else None

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


class AppSettings(Settings):
    """An owner's own Flower app, in place of fedappeal's code."""

    app: Stripped = ""
    """a ClientApp that may run on this client's data: package.module:attribute of one that is installed, a bundle
    (FILE.fab, or its SHA-256), or bundle: that of each run that is approved"""
    app_config: Stripped = setting("", joined=" ")
    """what the app finds in its node configuration besides data: KEY=VALUE, several by spaces, repeatable"""
    app_loss: Stripped = ""
    """the app's number by which the client judges; empty: the one that ends in loss"""
    tell: Stripped = setting("", joined=",")
    """a further number of the app's that replies may tell; repeatable"""
    no_sandbox: bool = setting(False, flag=True)
    """let the app read and reach what this user can"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.app and not self.of_bundle and not is_reference(self.app):
            raise ValueError(
                f"app = '{self.app}' is not allowed: package.module:attribute of a ClientApp, FILE.fab, the SHA-256 "
                f"of a bundle, or {BUNDLE}"
            )
        if self.of_bundle and self.no_sandbox:
            raise ValueError(f"no-sandbox is not allowed with app = '{self.app}': a bundle's code is always confined")
        for key, value in (("app-config", self.app_config), ("app-loss", self.app_loss), ("tell", self.tell)):
            if value and not self.app:
                raise ValueError(f"{key} = '{value}' is not allowed without app")
        return self

    @property
    def of_bundle(self) -> bool:
        """Whether the code is a bundle's."""
        return self.app == BUNDLE or self.app.endswith(".fab") or bool(_SHA256.fullmatch(self.app))

    def approval(self, approve: str | None) -> str:
        """Return which runs the client takes; a bundle's code is asked about where its owner says nothing.

        Raises:
            ConfigError: any run's bundle may run.
        """
        if self.app == BUNDLE and approve == ANY:
            raise ConfigError(f"approve = '{ANY}' is not allowed with app = '{BUNDLE}': {ASKED}, {LISTED}")
        return approve or (ASKED if self.of_bundle else ANY)


class Connection(Settings):
    """How a client reaches the SuperLink's Fleet API."""

    superlink: str
    """HOST:PORT of the SuperLink's Fleet API"""
    transport: Literal["auto", "grpc", "http"] = "auto"
    """protocol of the Fleet API; auto: gRPC if the SuperLink speaks it, else HTTP"""
    # Empty: the system's.
    root_certificates: LocalPath = ""
    """CA certificate (PEM) of the SuperLink"""
    key: LocalPath = ""
    """private key of this node (OpenSSH, NIST curve)"""
    insecure: bool = False
    """plaintext; for loopback and tests"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_address(self.superlink, "the Fleet API")
        for name, value in (("root-certificates", self.root_certificates), ("key", self.key)):
            if value and self.insecure:
                raise ValueError(f"{name} = '{value}' is not allowed together with insecure")
            if value and not Path(value).is_file():
                raise ValueError(f"{name} = '{value}' is not allowed: no such file")
        return self


class ProcessSettings(Settings):
    """Settings of the process that serves as a client: how it starts, and how it can be watched."""

    page: int | None = None
    """serve its page at this port, or any (0)"""
    page_port: int = 0
    """its port, where --page names none"""
    connect_timeout: float = 10.0
    """seconds to try for a first connection; 0: for ever"""
    metrics_port: int = 0
    """serve metrics for Prometheus at this port; 0: no"""
    metrics_address: str = "127.0.0.1"
    """address of this machine to serve metrics at"""
    heartbeat: str = ""
    """a file that says until when this process counts as alive, for health checks"""
    log_format: str = "text"
    """how it logs: text | json (an event a line)"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.page_port and self.page is None:
            raise ValueError(f"page-port = {self.page_port} is not allowed without --page")
        if self.page_port and self.page:
            raise ValueError(f"page-port = {self.page_port} is not allowed together with page = {self.page}")
        return self


def owner_fields() -> dict[str, FieldInfo]:
    """Return each setting of a client's owner by its key, in the order in which the command shows them."""
    kinds: tuple[type[Settings], ...] = (Connection, NodeSettings, AppSettings, ProcessSettings)
    return {key: field for kind in kinds for key, field in kind.described().items()}
