"""State shared by all clients of a run with equal owner settings."""

import copy
from functools import cached_property, lru_cache

from flwr.app import ArrayRecord, ConfigRecord

from client.choices import policy_maker, requirement_kind_of, rule_of
from client.data.cache import Cache, pick_device
from client.limits.disclosure import Disclosure
from client.participation.mixture import Mixture
from client.requirement import is_a_number, requirement_key
from client.settings import NodeSettings
from client.training.models import arrays_of
from fedappeal.core.algorithm import ClientSide
from fedappeal.core.local_rule import LocalRule, LocalTrainingSettings
from fedappeal.core.plugins import is_ours
from fedappeal.core.policy import Policy
from fedappeal.core.registry import STRATEGIES
from fedappeal.core.requirement import RequirementKind
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays, Layout, content_hash
from fedappeal.settings.config import RunConfig
from fedappeal.system import versions
from fedappeal.tasks.examples import OneClientsData


class Equipment:
    """Task, model, policy and rules that clients of a run share; read-only.

    Attributes:
        discloses: what replies may tell.
        device: where clients train.
        task: the task.
        initial: w_0.
        parts: which of the model's arrays travel, and which stay.
        model: a model of the task on the device, for its structure: its values do not last.
        layout: layout of what travels.
        fingerprint: the task's.
        allowed: the packages whose code may run.
        introduction: what each client's answer to the roll call says.
    """

    def __init__(self, config: RunConfig, node: NodeSettings, cache: Cache) -> None:
        """Load it.

        Args:
            config: the run's settings.
            node: the owner's settings.
            cache: holds what is loaded.

        Raises:
            ConfigError: where the owner's settings do not fit the run's, or do not allow what it names.
        """
        self._strategy: ClientSide = cache.strategy_of(config) or STRATEGIES.load(
            config.strategy, node.allowed
        ).of_run(config)
        self.discloses = Disclosure.of(config, node)
        self._mixture = Mixture.of_run(config, self._strategy.policy)
        self._policy_maker = lru_cache(maxsize=None)(lambda name: policy_maker(config, node, name))
        self._seed, self._owners_policy = config.seed, node.participation
        self._requirement_kind = requirement_kind_of(config, node)
        self.device = pick_device(node.device)
        self.task = cache.task(config.task_settings(), node.data_dir, node.allowed)
        self.initial, self.parts = cache.initial(self.task, config.seed), cache.parts(self.task, config.seed)
        self.model = cache.scratch_model(self.task, config.seed, self.device)
        self.layout = Layout.of(arrays_of(self.initial, self.parts.shared))
        self.fingerprint = self.task.fingerprint
        self._run_settings, self.allowed = config, node.allowed
        says = {keys.TASK: config.task, keys.FINGERPRINT: self.fingerprint, keys.VERSION: versions.FEDAPPEAL}
        self.introduction = ConfigRecord({**says, keys.PROTOCOL_VERSION: keys.PROTOCOL})
        kind = self._requirement_kind
        self._requirement_key = lru_cache(maxsize=1)(
            lambda data, initial, client: requirement_key(
                kind, config, self.fingerprint, data, self.layout.hash, initial, client
            )
        )
        self._latest: tuple[Arrays, ArrayRecord, str] | None = None

    def packed(self, arrays: Arrays) -> tuple[ArrayRecord, str]:
        """Return what travels of a model, packed, and its content hash; of the latest model they are remembered."""
        latest = self._latest
        if latest is None or latest[0] is not arrays:
            record = self.layout.pack({name: arrays[name] for name in self.layout.names})
            latest = self._latest = arrays, record, content_hash(record)
        return latest[1:]

    @cached_property
    def run_rule(self) -> LocalRule:
        """The local rule that the run's own settings name; for checks: a client that trains has one of its own.

        Raises:
            ConfigError: as `client.choices.rule_of`.
        """
        named = self._run_settings.local_rule
        name = self._strategy.rule_name if named == "auto" else named
        return rule_of(self._run_settings, self._strategy, name, {}, self.allowed)

    @cached_property
    def run_training(self) -> LocalTrainingSettings:
        """The run's own settings of local training."""
        return LocalTrainingSettings.of(self._run_settings.as_config())

    def requirement_key(self, data: OneClientsData, initial: str, client: str) -> str:
        """Return the name under which a client's requirement is stored; a number's is found once for all clients.

        Args:
            data: the client's.
            initial: content hash of w_0.
            client: the client-id.
        """
        fixed = ("", "", "") if is_a_number(self._requirement_kind) else (data.fingerprint, initial, client)
        return self._requirement_key(*fixed)

    def strategy(self) -> ClientSide:
        """Return a client's strategy; a copy of one that does not come with fedappeal: it may remember in itself."""
        return self._strategy if is_ours(type(self._strategy)) else copy.deepcopy(self._strategy)

    def policy(self, client_id: str) -> Policy:
        """Return a client's policy: the owner's, else the run's; an object of the client's own.

        Raises:
            ConfigError: for a policy that is not known or not allowed, or a setting of it.
        """
        return self._policy_maker(self._owners_policy or self._mixture.of(self._seed, client_id))()

    def requirement_kind(self) -> RequirementKind:
        """Return where rho_k comes from; an object of the client's own."""
        return type(self._requirement_kind)(self._requirement_kind.settings)
