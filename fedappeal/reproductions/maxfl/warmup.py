"""MaxFL, table 5: a client's requirement by the number of steps that it trains alone."""

from collections.abc import Mapping

from fedappeal.reproductions.maxfl.settings import (
    CLUSTERS,
    PREFERRED_TOO,
    QUICK,
    STRATEGY,
    TWINS,
    Reading,
    curves,
    first,
)
from fedappeal.studies.experiment import Arm, Claim, Experiment, Number, Numbers, Quick
from fedappeal.views.comparison.measures import GM_APPEAL, GM_APPEAL_LATE, PREFERRED, PREFERRED_LATE

_TABLE_5: Mapping[str, Mapping[int, tuple[Number, Number]]] = {
    "FedAvg": {
        50: ((0.01, 0.01), (98.56, 0.08)),
        100: ((0.01, 0.0), (98.72, 1.02)),
        150: ((0.01, 0.0), (98.75, 1.28)),
    },
    "FedProx": {
        50: ((0.01, 0.0), (98.56, 1.15)),
        100: ((0.01, 0.0), (98.72, 1.08)),
        150: ((0.01, 0.01), (98.75, 1.05)),
    },
    "MaxFL": {
        50: ((0.55, 0.0), (98.64, 1.03)),
        100: ((0.55, 0.0), (98.77, 1.01)),
        150: ((0.55, 0.0), (98.77, 1.01)),
    },
}

_STEPS = (50, 100, 150)


def _reading(steps: int) -> Reading:
    # The rows of 100 steps are those of table 3, whose runs they share.
    suffix = "" if steps == 100 else f", {steps} steps"
    return Reading(f"{steps} steps alone", suffix, {"solo.steps": steps})


_READINGS = tuple(map(_reading, _STEPS))


def _steady(name: str) -> Claim:
    def margin(number: Numbers) -> float:
        found = [number(name + reading.suffix, GM_APPEAL_LATE.key) for reading in _READINGS]
        return 0.05 - (max(found) - min(found))

    text = f"{name}'s GM-Appeal differs by at most 0.05 between {_STEPS[0]} and {_STEPS[-1]} steps"
    return Claim(text, margin, inclusive=True)


EXPERIMENTS = (
    Experiment(
        name="maxfl-table5",
        title="MaxFL: how long a client trains alone",
        source="MaxFL, table 5",
        claim="However many steps a client trains alone for what it requires, GM-Appeal hardly changes, and "
        "MaxFL's is far the highest (0.55 against 0.01).",
        settings=CLUSTERS,
        arms=tuple(
            Arm(
                name + reading.suffix,
                {"strategy": STRATEGY[name], **reading.settings},
                dict(zip(("gm-appeal", "preferred"), numbers[steps], strict=True)),
                reading.group,
                "maxfl-table3" if steps == 100 else "",
                label=name,
            )
            for steps, reading in zip(_STEPS, _READINGS, strict=True)
            for name, numbers in _TABLE_5.items()
        ),
        measures=(GM_APPEAL, GM_APPEAL_LATE, PREFERRED, PREFERRED_LATE),
        quick=Quick({**QUICK, "rounds": 10}, ("FedAvg, 50 steps", "MaxFL, 50 steps", "MaxFL")),
        claims=(
            *(
                first(measure, reading, tuple(_TABLE_5))
                for reading in _READINGS
                for measure in (GM_APPEAL_LATE, PREFERRED_LATE)
            ),
            *map(_steady, _TABLE_5),
        ),
        twins=TWINS,
        figure=curves(PREFERRED_TOO),
        notes="""\
- Read as table 3's setting: five clusters of two labels, 30 % of the clients flipped in train and test labels.
  The paper says only that it is Fashion-MNIST for 200 rounds.
- With MaxFL the requirement also decides the weights, so its three runs differ; the baselines' models do not.
""",
    ),
)
