"""Evaluation in bfloat16: clients that judge in it, the decisions that it changes, and whether a processor has it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from client.participant import Participant
from client.training.models import BFLOAT16, FLOAT32
from fedappeal.core.policy import Situation
from fedappeal.core.requirement import Evaluation, Requirement
from fedappeal.protocol.keys import TRAIN_SPLIT, Decision
from fedappeal.protocol.packing import Arrays

COMPARED_EVERY = 10
"""Decisions of one round in this many, the first among them, are made again from an evaluation in float32."""
CPU_INFO = Path("/proc/cpuinfo")


@dataclass
class Flips:
    """Decisions that were made again in float32.

    Attributes:
        compared: their number since the count was taken last.
        flipped: those of them that came out otherwise.
    """

    compared: int = 0
    flipped: int = 0

    def add(self, flipped: bool) -> None:
        """Count a decision."""
        self.compared += 1
        self.flipped += flipped

    def taken(self) -> dict[str, float]:
        """Return the counts for the history, and begin anew; nothing where no decision was compared."""
        counts = {"compared_decisions": self.compared, "flipped_decisions": self.flipped} if self.compared else {}
        self.compared = self.flipped = 0
        return dict(counts)


class BFloat16Participant(Participant):
    """A client that judges models in bfloat16, and in some rounds decides by float32 as well.

    Args:
        flips: counts the decisions of all clients.
        given: what a participant takes.
    """

    precision = BFLOAT16

    def __init__(self, flips: Flips, *given: Any) -> None:
        super().__init__(*given)
        self._flips = flips
        self._in_float32: Callable[[], Evaluation] | None = None
        """Evaluates the model that is to be decided on."""

    def judge(
        self, arrays: Arrays, model: str, split: str, *given: Any, server_round: int = 0, **named: Any
    ) -> Evaluation:
        """See `Participant.judge`."""
        judge = partial(super().judge, arrays, model, split, *given, **{**named, "server_round": server_round})
        if split == self.judged_split and server_round % COMPARED_EVERY == 1:
            self._in_float32 = partial(judge, precision=FLOAT32)
        return judge()

    def decision(self, situation: Situation, requirement: Requirement) -> Decision:
        """Return what the policy decides; count whether an evaluation in float32 had changed that."""
        decision = super().decision(situation, requirement)
        again, self._in_float32 = self._in_float32, None
        # With dropout on a loss is measured in float32 anyway.
        by_loss = self.policy.needs_loss and self.config.loss_mode == "evaluation"
        if again is not None and by_loss and situation.server_round % COMPARED_EVERY == 1:
            exact = again()
            training = exact if self.judged_split == TRAIN_SPLIT else situation.evaluation
            met, advantage = requirement.met(exact), requirement.advantage(exact)
            other = replace(situation, evaluation=training, judged=exact, met=met, advantage=advantage)
            self._flips.add(super().decision(other, requirement) is not decision)
        return decision


def missing_bfloat16(device: str) -> str:
    """Return a line where a device, ``cpu``, is a processor without instructions for bfloat16; empty: it has them."""
    if device != "cpu" or not CPU_INFO.exists():
        return ""
    fields = (line.partition(":") for line in CPU_INFO.read_text().splitlines())
    features = {word for name, _, value in fields if name.strip() in ("flags", "Features") for word in value.split()}
    if any(word.endswith("bf16") for word in features):
        return ""
    return (
        f"evaluation-precision = {BFLOAT16}: this processor has no instructions for it (avx512_bf16, amx_bf16): "
        "evaluation takes several times as long as in float32"
    )
