"""The ClientApp in Flower's simulation, which sends it to its processes with each message."""

import pickle

import pytest

from client import app as module
from client.roster import Participants
from client.training.task_learner import TaskLearners


def test_a_process_answers_with_clients_of_its_own_which_last() -> None:
    assert pickle.loads(pickle.dumps(module.clients)) is module.clients


def test_an_app_with_participants_of_a_programs_own_stays_in_its_process() -> None:
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(module.Clients(Participants(TaskLearners())))
