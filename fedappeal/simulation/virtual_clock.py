"""How long simulated rounds had taken on devices of different speed."""

from dataclasses import dataclass, field

from client.participation.behaviour import Mixture, parts_of
from client.participation.habits import Device
from client.training.models import arrays_of
from fedappeal.core.local_rule import LocalTrainingSettings
from fedappeal.tasks.share import parts_of as parts_of_model
from fedappeal.tasks.share import share_of
from fedappeal.tasks.task import Task
from server.build import Chosen
from strategies.rounds.exchange.members import Member
from strategies.rounds.round import RoundRecord

COLUMN = "virtual_seconds"
"""In the history: the slowest joiner's time; 0 in a round without a joiner that has a `Device`."""


@dataclass
class VirtualClock:
    """Tells a round's virtual seconds.

    Attributes:
        mixture: the run's policies.
        seed: the run's.
        device: the behaviour, with its settings.
        training: the run's local training.
        size: bytes of what travels of the model.
        examples: training examples by client.
    """

    mixture: Mixture
    seed: int
    device: Device
    training: LocalTrainingSettings
    size: int
    examples: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_run(cls, plugins: Chosen, task: Task) -> "VirtualClock | None":
        """Return a run's clock; None: none of its policies has a device."""
        if Device.name not in plugins.mixture.parts:
            return None
        config = plugins.config
        model = task.initial_model(config.seed)
        size = sum(array.nbytes for array in arrays_of(model, parts_of_model(model, share_of(task)).shared).values())
        device, training = Device(plugins.settings_of(Device)), LocalTrainingSettings.of(config.as_config())
        return cls(plugins.mixture, config.seed, device, training, size)

    def note(self, member: Member) -> None:
        """Remember how many examples a client has."""
        self.examples[member.client_id] = member.num_examples

    def seconds(self, record: RoundRecord) -> float:
        """Return the time of the slowest client that joined; the round does not wait for surplus ones."""
        joined = [client for client, what in record.decisions.items() if what in ("joined", "refused")]
        slow = [client for client in joined if Device.name in parts_of(self.mixture.of(self.seed, client))]
        return max(map(self._seconds_of, slow), default=0.0)

    def _seconds_of(self, client: str) -> float:
        steps = self.training.steps(self.examples.get(client, 0))
        return self.device.seconds(self.seed, client, steps, self.size)
