"""A learner that is not ours, 20 lines of NumPy: all that a participant decides works with it."""

from pathlib import Path

import numpy as np
import pytest

from client.learner import SPLITS, Job, Learner, Learners, Sent
from client.outcome import JOINED, LEFT, SAT_OUT
from client.page.app import page_data
from client.process.answer import Answer
from client.process.owner import leave
from client.roster import Participants
from client.state.activity import Activity
from fedappeal.core.requirement import Evaluation
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Arrays, Layout
from fedappeal.settings.config import ConfigError, Scalar
from strategies.maxfl import APPEAL_WEIGHT, appeal_weight
from tests.node import Node, metrics_of, run_config

X = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
Y = np.array([1.0, 2.0, 4.0])
RATE = 0.1
START = {"w": np.zeros(2)}


class Line(Learner):
    """Least squares on one column."""

    can = frozenset({SPLITS})
    expects = Layout.of(START)
    data_fingerprint = "three points"

    def examples(self, split: str) -> int:
        return len(X)

    def measure(self, arrays: Arrays, split: str, sent: Sent | None = None) -> Evaluation:
        loss = float(np.mean((X @ arrays["w"] - Y) ** 2))
        return Evaluation(loss, 1 / (1 + loss))

    def train(self, arrays: Arrays, job: Job) -> Arrays:
        w = arrays["w"]
        for _ in range(job.training.steps(len(X))):
            w = w - job.training.learning_rate * 2 / len(X) * X.T @ (X @ w - Y)
        return {"w": w}


def by_hand(w: np.ndarray, steps: int) -> np.ndarray:
    """Gradient descent, by the two partial derivatives."""
    a, b = w
    for _ in range(steps):
        error = [a + b * x - y for x, y in zip((0, 1, 2), Y, strict=True)]
        a, b = a - RATE * 2 * sum(error) / 3, b - RATE * 2 * (error[1] + 2 * error[2]) / 3
    return np.array([a, b])


def loss(w: np.ndarray) -> float:
    return sum((w[0] + w[1] * x - y) ** 2 for x, y in zip((0, 1, 2), Y, strict=True)) / 3


def node(folder: Path | None = None, learner: type[Learner] = Line, **settings: Scalar) -> Node:
    config = run_config(
        **{"clients": 4, "solo__steps": 4, "solo__learning_rate": RATE, "local_steps": 2, "learning_rate": RATE}
        | settings
    )
    one = Node(config, folder, Participants(Learners(lambda run, owner, client_id: learner())))
    one.initial = START
    return one


def model(*w: float) -> dict[str, np.ndarray]:
    return {"w": np.array(w)}


GOOD, BAD = model(0.8, 1.5), model(0.1, 0.1)


def test_requirement_decision_claim_and_update_are_the_learners_numbers(tmp_path: Path) -> None:
    one = node(tmp_path)
    assert metrics_of(one("query")) == {keys.NUM_EXAMPLES: 3}
    rho = loss(by_hand(START["w"], 4))
    assert loss(GOOD["w"]) < rho < loss(BAD["w"])
    joined, sat_out = one.outcome("train", GOOD, mandatory=0), one.outcome("train", BAD, server_round=2, mandatory=0)
    assert (joined.what, sat_out.what) == (JOINED, SAT_OUT)
    assert joined.told[APPEAL_WEIGHT] == pytest.approx(appeal_weight(loss(GOOD["w"]), rho), rel=1e-9)
    sent = one.layout.unpack(joined.records[keys.ARRAYS])
    assert sent["w"] == pytest.approx(by_hand(GOOD["w"], 2), rel=1e-12)
    assert not sat_out.records
    assert sat_out.judged.compared == f"training loss {loss(BAD['w']):.4f}, required below {rho:.4f}: not met"
    answer = one.metrics("evaluate", GOOD)
    assert answer[keys.LOSS] == pytest.approx(loss(GOOD["w"]), rel=1e-9)
    assert (answer[keys.APPEALED], answer[keys.SERVED]) == (1, 1)


def test_goodwill_is_written_before_anything_is_trained_and_lasts(tmp_path: Path) -> None:
    class Fails(Line):
        def train(self, arrays: Arrays, job: Job) -> Arrays:
            if job.purpose == "batches":
                raise RuntimeError("the power went")
            return super().train(arrays, job)

    one = node(tmp_path, Fails, goodwill=1)
    one("query")
    with pytest.raises(RuntimeError, match="the power went"):
        one("train", BAD, mandatory=1)
    again = node(tmp_path, goodwill=1)
    assert again.outcome("train", BAD, server_round=1, mandatory=1).what == JOINED, "what is paid is not paid twice"
    assert again.outcome("train", BAD, server_round=2, mandatory=1).what == SAT_OUT
    assert again.outcome("train", GOOD, server_round=3, mandatory=0).what == JOINED


def test_its_requirement_and_its_leaving_outlive_the_process(tmp_path: Path) -> None:
    one = node(tmp_path)
    one("query")

    class Forgetful(Line):
        def train(self, arrays: Arrays, job: Job) -> Arrays:
            raise AssertionError("trained again")

    again = node(tmp_path, Forgetful)
    again("query")
    assert again.outcome("train", BAD, mandatory=0).what == SAT_OUT
    leave(tmp_path, "k")
    assert again.outcome("train", GOOD, mandatory=1).what == LEFT


@pytest.mark.parametrize(
    ("policy", "whats"),
    [
        ("always", [JOINED, JOINED]),
        ("appeal+rest", [SAT_OUT, SAT_OUT]),
        ("anticipate", [JOINED, LEFT]),
    ],
)
def test_every_policy_decides_on_it(policy: str, whats: list[str]) -> None:
    one = node(participation=policy, anticipate__window=1, anticipate__horizon=1)
    one("query")
    told = [one.outcome("train", m, server_round=t, mandatory=0).what for t, m in ((1, BAD), (2, model(0.1, 0.1)))]
    assert told == whats


def test_the_page_shows_its_runs_and_the_model_that_it_prefers(tmp_path: Path) -> None:
    one = node(tmp_path)
    one("query")
    for kind, arrays, final in (("train", GOOD, None), ("evaluate", GOOD, 1)):
        message = one.message(kind, arrays, mandatory=0, final=final)
        answer = Answer(message, one.answer(message, one.context))
        answer.remember(Activity(tmp_path), {"strategy": "maxfl", "task": "points"}, 0.1)
    page = page_data(tmp_path)
    (run,), (kept,) = page["runs"], page["models"]
    assert (run["joined"], run["measure"]["prefers"]) == (1, "shared")
    assert run["measure"]["scores"] == pytest.approx([1 / (1 + loss(GOOD["w"]))])
    assert kept["title"].startswith("shared model of maxfl")
    assert page["decisions"][0]["why"].startswith(f"training loss {loss(GOOD['w']):.4f}")


class Bare(Line):
    """The same, without splits."""

    can = frozenset()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"strategy": "fedprox"}, "local-rule = 'prox' is not allowed for this client: its learner has no 'rules'"),
        (
            {"strategy": "adagd", "adagd.form": "one-gradient"},
            "local-rule = 'gradient' is not allowed for this client: its learner has no 'gradient'",
        ),
        ({"share": "!w"}, "share = '!w' is not allowed for this client: its learner has no 'personal'"),
        (
            {"strategy": "pfedme", "judge_on": "held-out"},
            "local-rule = 'prox' is not allowed for this client: its learner has no 'rules'",
        ),
    ],
)
def test_what_a_run_needs_and_it_lacks_is_one_line_at_the_roll_call(settings: dict[str, Scalar], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        node(learner=Bare, **settings)("query")
    assert str(error.value) == f"{line} (it has: none)"


def test_a_survey_of_training_examples_needs_splits() -> None:
    line = "strategy = 'maxfl' is not allowed for this client: its learner has no 'splits' (it has: none)"
    with pytest.raises(ConfigError) as error:
        node(learner=Bare)("query", needs_train_split=1)
    assert str(error.value) == line
    assert metrics_of(node()("query", needs_train_split=1))


def test_held_out_data_to_judge_by_need_a_path() -> None:
    class HoldsOut(Line):
        holds_out = True

    with pytest.raises(ConfigError, match=r"its learner has no 'path' \(it has: splits\)"):
        node(learner=HoldsOut, judge_on="held-out")("query")
    assert metrics_of(node(judge_on="held-out")("query")), "without held-out data it judges by its training loss"


def test_a_requirement_that_is_a_number_costs_no_look_at_the_data() -> None:
    class Large(Line):
        @property
        def data_fingerprint(self) -> str:  # type: ignore[override]
            raise AssertionError("all examples are hashed")

    assert metrics_of(node(learner=Large, requirement="fixed")("query"))
    with pytest.raises(AssertionError, match="hashed"):
        node(learner=Large)("query")
