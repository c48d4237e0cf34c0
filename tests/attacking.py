"""A node of `tests.node` that may attack, as a simulated client does."""

from client.participant import Participant
from client.roster import Participants
from client.training.task_learner import TaskLearners
from fedappeal.settings.config import RunConfig, Scalar
from fedappeal.simulation.attackers import Liars, kind_of
from tests.node import Node


def attacking(config: RunConfig, **node: Scalar) -> Node:
    """Return a node of a run with attackers."""
    participants = Participants(TaskLearners(), kind_of(config, Participant))
    one = Node(config, participants=participants, **node)
    one.answer = Liars(one.answer, participants, config)
    return one
