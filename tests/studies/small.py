"""Experiments small enough for tests: one computed, one of federated runs on digits."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fedappeal.studies.experiment import Arm, Claim, Experiment, Numbers, Quick, Results
from fedappeal.views.comparison.measures import Measure, last, late

VALUE = Measure("value", "value", last("value"))


def compute(settings: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Return ``base + seed``; leave a mark for each call; fail where told to."""
    mark = Path(settings["marks"]) / f"{settings['base']}-{seed}"
    mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
    if seed in settings["fails"]:
        raise ArithmeticError(f"no value for\nseed {seed}")
    return {"value": settings["base"] + seed}


def computed(marks: Path, **changed: Any) -> Experiment:
    """Return an experiment of two rows; values are 10 + seed and 20 + seed."""
    given: dict[str, Any] = {
        "name": "computed",
        "title": "A computed experiment",
        "source": "nowhere, table 0",
        "claim": "Twenty is more than ten.",
        "settings": {"marks": str(marks), "fails": []},
        "arms": (Arm("ten", {"base": 10}, {"value": 12.0}), Arm("twenty", {"base": 20}, {"value": (20.0, 0.5)})),
        "measures": (VALUE,),
        "quick": Quick(settings={"base": 5}, arms=("ten",)),
        "seeds": 3,
        "claims": (
            Claim("twenty is more than ten", lambda n: n("twenty", "value") - n("ten", "value")),
            Claim("twenty is more than twenty", lambda n: n("twenty", "value") - 20),
        ),
        "compute": compute,
    }
    return Experiment(**{**given, **changed})


def holds(claim: Claim, number: Numbers) -> bool:
    """Whether a claim holds for the numbers of one seed."""
    margin = claim.margin(number)
    return margin >= 0 if claim.inclusive else margin > 0


class Drawn:
    """A figure that is no picture: what it was given."""

    def __init__(self, results: Results) -> None:
        self._names = " ".join(arm.name for arm in results.arms)

    def savefig(self, file: IO[bytes], **_: object) -> None:
        file.write(self._names.encode())


FEDERATED = Experiment(
    name="federated",
    title="A federated experiment",
    source="nowhere, table 1",
    claim="Nothing.",
    settings={
        "task": "digits",
        "model": "logistic",
        "clients": 3,
        "rounds": 2,
        "local-steps": 2,
        "solo.steps": 2,
        "participation": "always",
    },
    arms=(Arm("FedAvg", {"strategy": "fedavg"}), Arm("MaxFL", {"strategy": "maxfl"})),
    measures=(Measure("accuracy", "accuracy %", late("accuracy", 20), percent=True),),
    quick=Quick(settings={"rounds": 1}),
    seeds=1,
)
