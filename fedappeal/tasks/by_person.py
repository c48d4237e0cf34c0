"""Tasks whose clients are people or groups of them: raters, schools, maintainers."""

from abc import abstractmethod
from collections.abc import Mapping

from fedappeal.tasks.arrays import Features, Labels
from fedappeal.tasks.natural import NaturalTask
from fedappeal.tasks.partitions.users import draw_users


class ByPerson(NaturalTask):
    """Data that says whose each example is; clients are drawn among the people with ``min-examples`` of them.

    Attributes:
        people: what clients are called, for messages.
        things: what their examples are called.
    """

    people: str
    things: str
    default_model = "logistic"

    @abstractmethod
    def held(self) -> Mapping[str, tuple[Features, Labels]]:
        """Return each person's inputs, float32 ``(n, *input_shape)``, and labels ``(n,)``; read once a process.

        Raises:
            ConfigError: the data cannot be read.
        """

    def check(self) -> None:
        """Read the data, and draw the clients.

        Raises:
            ConfigError: the data cannot be read, or too few people have enough examples.
        """
        self._drawn()

    def read(self) -> list[tuple[Features, Labels]]:
        """Return the drawn clients' inputs and labels."""
        held = self.held()
        return [held[person] for person in self._drawn()]

    def _drawn(self) -> list[str]:
        counts = {person: len(labels) for person, (_, labels) in self.held().items()}
        return draw_users(self.settings, counts, self.things, self.people)
