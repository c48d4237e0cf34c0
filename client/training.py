"""What a client that joined sends: by default its locally trained model; some local rules send something else."""

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ArrayRecord, RecordDict

from client.control import controlled
from client.gradient import gradient
from client.participant import Participant
from client.work import LocalWork
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays


@dataclass(frozen=True)
class Job:
    """One TRAIN that a client joined.

    Attributes:
        participant: the client.
        content: the message's records.
        arrays: the model that was sent, by name.
        server_round: counted from 1.
        run_key: which run.
        work: the local rule's settings.
        factor: what a gradient is multiplied by.
    """

    participant: Participant
    content: RecordDict
    arrays: Arrays
    server_round: int
    run_key: str
    work: LocalWork
    factor: float = 1.0


Training = Callable[[Job], dict[str, ArrayRecord]]

TRAININGS: dict[str, Training] = {"gradient": gradient, "scaffold": controlled}
"""Local rules whose reply is not just the model that a rule of `client.rules` trained."""


def trained(rule: str, job: Job) -> dict[str, ArrayRecord]:
    """Return the ArrayRecords of a joined reply.

    Raises:
        ValueError: for a local rule that this version does not have.
    """
    if rule in TRAININGS:
        return TRAININGS[rule](job)
    local = job.participant.train(job.arrays, job.server_round, rule, job.work)
    return {keys.ARRAYS: job.participant.layout.pack(local)}
