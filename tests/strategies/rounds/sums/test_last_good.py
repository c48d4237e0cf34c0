"""A model that most clients cannot evaluate: the run goes back to the last good one, and so does its strategy."""

import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from fedappeal.protocol import keys
from fedappeal.protocol.metric import Metric
from server.checkpoints import Checkpoint
from strategies import FedAvg
from strategies.rounds.round import Round
from strategies.rounds.strategy import rounds_of
from strategies.rounds.sums.last_good import DIVERGED, LOST, ROLLED_BACK, ROLLED_BACK_TO
from tests.grid import MemoryGrid, Volunteer, Watch, model, run, values_of

USELESS = 1e30
"""A model of this size or more has no finite loss."""


class Judge(Volunteer):
    """A client whose loss is infinite on a useless model; ``says`` answers in its place."""

    says: Any = None

    def __call__(self, message: Message) -> Message | None:
        if message.metadata.message_type == "evaluate":
            value = values_of(message.content.array_records[keys.ARRAYS])[0]
            told = self.says(value) if self.says else {keys.LOSS: math.inf if value >= USELESS else value}
            if isinstance(told, Exception):
                raise told
            self.evaluation = told
        return super().__call__(message)


class Counting(FedAvg):
    """Carries the number of rounds that moved the model."""

    moved = 0

    def update(self, round: Round) -> ArrayRecord:
        self.moved += 1
        return super().update(round)

    def carried(self) -> dict[str, Any]:
        return {"own": {"moved": self.moved}}

    def take_up(self, carried: Any) -> None:
        self.moved = int(carried["own"]["moved"])


def federation(*says: Any) -> MemoryGrid:
    """Six clients that add 1 to the model; the first ones answer an evaluation as given."""
    nodes = {}
    for k in range(6):
        nodes[10 + k] = judge = Judge(f"c{k}")
        judge.says = says[k] if k < len(says) else None
    return MemoryGrid(dict(nodes))


def attacked(grid: MemoryGrid, rounds: tuple[int, ...]) -> Watch:
    """In these rounds client c0 sends a huge model, which the plain average takes up."""

    def huge(value: float) -> Any:
        return lambda: setattr(grid.nodes[10], "local", value)

    return Watch({n: huge(1e32 if n in rounds else 1.0) for n in range(1, 40)})


def lines(watch: Watch) -> dict[int, int]:
    """The rounds with a roll-back, and where each went."""
    return {r.server_round: int(r.metrics[ROLLED_BACK_TO]) for r in watch.records if ROLLED_BACK in r.metrics}


@pytest.mark.parametrize("every", [1, 3])
def test_the_run_goes_back_to_the_last_good_model_and_on(every: int) -> None:
    grid, strategy = federation(), Counting(evaluate_every=every)
    result, watch = run(strategy, grid, 9, attacked(grid, (5,)))
    if every == 1:  # the model of round 4 is 4; round 5 is lost
        assert lines(watch) == {5: 4}
        assert [value for (value,) in watch.models] == [1, 2, 3, 4, 4, 5, 6, 7, 8]
    else:  # rounds 4, 5 and 6 are lost
        assert lines(watch) == {6: 3}
        assert values_of(result.arrays) == [6.0]
    assert strategy.moved == values_of(result.arrays)[0], "what the strategy carries is of the same time"
    assert not rounds_of(strategy).finished
    assert rounds_of(strategy).record.server_round == 9


def test_the_initial_model_is_good_until_one_is_known_to_be() -> None:
    grid, rollbacks = federation(), list[tuple[int, int, int, int]]()
    watch = attacked(grid, (1,))
    watch.on_rolled_back = lambda *said: rollbacks.append(said)  # type: ignore[method-assign]
    run(FedAvg(), grid, 3, watch)
    assert lines(watch) == {1: 0}
    assert rollbacks == [(1, 0, 0, 6)], "the hooks are told of round 1: back to w_0, usable for 0 of 6 clients"
    assert watch.models == [[0.0], [1.0], [2.0]]


def test_three_in_a_row_end_the_run_with_the_last_good_model() -> None:
    grid, strategy = federation(), Counting()
    result, watch = run(strategy, grid, 30, attacked(grid, (3, 4, 6, 7, 8, 9)))
    assert rounds_of(strategy).finished == LOST
    assert lines(watch) == {3: 2, 4: 2, 6: 5, 7: 5, 8: 5}, "a good model between them begins the count again"
    assert values_of(result.arrays) == [3.0]


def test_divergence_that_follows_a_useless_model_is_undone() -> None:
    class Lost(Judge):
        def __call__(self, message: Message) -> Message | None:
            if message.metadata.message_type == "train":
                sent = values_of(message.content.array_records[keys.ARRAYS])[0]
                self.local = math.nan if sent >= USELESS else 1e32 if self.strikes(message) else 1.0
            return super().__call__(message)

        def strikes(self, message: Message) -> bool:
            return self.name == "c0" and message.metadata.group_id == "2"

    grid, strategy = MemoryGrid({10 + k: Lost(f"c{k}") for k in range(4)}), FedAvg(evaluate_every=0)
    result, watch = run(strategy, grid, 8)
    # From round 3 on no client can train: after three such rounds the run would have diverged, and is evaluated.
    assert lines(watch) == {5: 0}
    assert rounds_of(strategy).finished != DIVERGED
    assert values_of(result.arrays) == [3.0], "rounds 6 to 8"


# -- what does not count ---------------------------------------------------------------------------------

LIES: dict[str, Any] = {
    "no number": lambda value: {keys.LOSS: math.nan},
    "an error": lambda value: RuntimeError("no"),
    "a lie": lambda value: {keys.LOSS: math.inf},
    "malformed": lambda value: {keys.APPEALED: 7.0},
}


@pytest.mark.parametrize("liars", [1, 2, 3])
@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_up_to_half_of_the_clients_cannot_force_a_roll_back(lie: Any, liars: int) -> None:
    _, watch = run(FedAvg(), federation(*[lie] * liars), 3)
    assert lines(watch) == {}
    assert watch.models == [[1.0], [2.0], [3.0]]


def test_more_than_half_can() -> None:
    _, watch = run(FedAvg(), federation(*[LIES["an error"]] * 4), 2)
    assert lines(watch) == {1: 0, 2: 0}


@pytest.mark.parametrize("quiet", [lambda value: None, lambda value: {"accuracy": 0.5}], ids=["silent", "no loss"])
def test_clients_that_tell_no_loss_say_nothing(quiet: Any) -> None:
    """Two answer without a finite loss, four say nothing: fewer than three have answered."""
    _, watch = run(FedAvg(round_timeout=5.0), federation(LIES["a lie"], LIES["a lie"], *[quiet] * 4), 2)
    assert lines(watch) == {}


def test_of_three_that_answer_two_decide() -> None:
    grid = federation(LIES["a lie"], LIES["a lie"], None, *[lambda value: None] * 3)
    _, watch = run(FedAvg(round_timeout=5.0), grid, 1)
    assert lines(watch) == {1: 0}


@pytest.mark.parametrize(("liars", "useless"), [(3, False), (4, True)])
def test_errors_count_against_the_replies_that_report_no_loss(liars: int, useless: bool) -> None:
    """Else three clients could end the run of any number that report none."""
    strategy, quiet = FedAvg(), lambda value: {"accuracy": 0.5}
    _, watch = run(strategy, federation(*[LIES["an error"]] * liars, *[quiet] * (6 - liars)), 4)
    assert (len(lines(watch)), rounds_of(strategy).finished) == ((3, LOST) if useless else (0, ""))


def test_one_answer_alone_makes_no_model_good() -> None:
    """Else one client could have the run go back to the useless model."""
    grid = federation()
    watch = attacked(grid, (3,))
    for k in range(1, 6):
        grid.nodes[10 + k].says = lambda value: None  # type: ignore[union-attr]
    grid.nodes[10].says = lambda value: {keys.LOSS: 0.1}  # type: ignore[union-attr]
    strategy = FedAvg(round_timeout=5.0)
    run(strategy, grid, 3, watch)
    assert rounds_of(strategy).last_good.server_round == 0


# -- a run that continues --------------------------------------------------------------------------------


class Stopped(Exception):
    """The server was killed."""


@pytest.mark.parametrize("bad", [(2, 5), (4, 5)])
@pytest.mark.parametrize("stop", range(1, 9))
def test_a_run_that_continues_goes_back_as_if_it_had_not_stopped(
    stop: int, bad: tuple[int, ...], tmp_path: Path
) -> None:
    grid = federation()
    whole, expected = run(Counting(evaluate_every=3), grid, 9, attacked(grid, bad))

    grid, first, file = federation(), Counting(evaluate_every=3), tmp_path / "checkpoint"
    watch = attacked(grid, bad)

    def killed() -> None:
        Checkpoint(stop, model(0), model(*watch.models[-1]), rounds_of(first).state()).write(file)
        raise Stopped

    watch.after[stop] = killed
    with pytest.raises(Stopped):
        run(first, grid, 9, watch)
    read, again = Checkpoint.read(file), Counting(evaluate_every=3)
    rounds_of(again).restore(read.state)
    result, later = run(again, grid, 9, attacked(grid, bad), arrays=read.arrays, first_round=stop + 1)
    assert values_of(result.arrays) == values_of(whole.arrays)
    assert lines(watch) | lines(later) == lines(expected)
    assert len(lines(expected)) == len({(number + 2) // 3 for number in bad})
    assert again.moved == values_of(whole.arrays)[0]


def test_the_last_good_model_is_in_a_checkpoint_only_where_it_is_no_other_model_of_it() -> None:
    grid, strategy = federation(), Counting(evaluate_every=2)
    sizes: list[int] = []
    watch = attacked(grid, (3,))
    for number in range(1, 6):
        watch.after[number] = lambda: sizes.append(len(rounds_of(strategy).state()))
    run(strategy, grid, 5, watch)
    assert sizes == [2, 2, 4, 2, 2], "after round 3 the run's model is not the last good one, nor the initial one"


def test_a_checkpoint_of_an_earlier_version_is_taken_as_good() -> None:
    old = RecordDict(dict(rounds_of(Counting()).state()))
    for key in ("good-round", "good-model", "rolled-back"):
        del old.config_records["volunteers"][key]
    again, grid = Counting(), federation()
    rounds_of(again).restore(old)
    _, watch = run(again, grid, 5, attacked(grid, (5,)), arrays=model(7.0), first_round=5)
    assert lines(watch) == {5: 4}
    assert watch.models == [[7.0]]


def test_an_answer_out_of_the_bounds_of_the_tasks_own_metric_is_left_out() -> None:
    strategy, grid = FedAvg(), federation(lambda value: {keys.LOSS: value, "auc": 1e300})
    rounds_of(strategy).setup.metric = Metric("auc", low=0.0, high=1.0)
    _, watch = run(strategy, grid, 1)
    (record,) = watch.records
    assert sorted(record.measured) == ["c1", "c2", "c3", "c4", "c5"]
    assert "auc = 1e+300 is not allowed" in record.failures["c0"]


def test_the_line_of_a_roll_back_says_why_an_evaluation_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = FedAvg(), federation(*[lambda value: {keys.LOSS: value, "r2": -3.0}] * 6)
    rounds_of(strategy).setup.metric = Metric("r2", low=0.0, high=1.0)
    run(strategy, grid, 1)
    assert "usable loss on the new model (c0: evaluation: r2 = -3.0 is not allowed: 0.0 to 1.0)" in caplog.text


# -- losses that are finite, and lost --------------------------------------------------------------------


def told(losses: dict[float, float]) -> Any:
    """A client's answers: its loss by the model's value; of any other value 8.6e22."""
    return lambda value: {keys.LOSS: losses.get(value, 8.6e22)}


def test_a_finite_loss_out_of_all_proportion_is_lost_from_the_first_round_on() -> None:
    # Nothing is known of a good model after round 1: so the clients are asked what w_0 cost them.
    grid = federation(*[told({0.0: 2.3, 1.0: 2.0, 2.0: 1.0}) for _ in range(6)])
    strategy = FedAvg()
    _, watch = run(strategy, grid, 3, attacked(grid, (1,)))
    assert lines(watch) == {1: 0}
    assert watch.models == [[0.0], [1.0], [2.0]]
    assert (rounds_of(strategy).last_good.best, rounds_of(strategy).last_good.initial) == (1.0, 2.3)


@pytest.mark.parametrize(("third", "back"), [(99.0, {}), (101.0, {3: 2}), (1e4, {3: 2})])
def test_lost_is_a_hundred_times_the_best_median(third: float, back: dict[int, int]) -> None:
    grid = federation(*[told({0.0: 2.3, 1.0: 3.0, 2.0: 1.0, 3.0: third}) for _ in range(6)])
    _, watch = run(FedAvg(), grid, 3)
    assert lines(watch) == back


def test_a_loss_below_w_0s_is_never_lost() -> None:
    grid = federation(*[told({0.0: 2.3, 1.0: 0.001, 2.0: 2.2, 3.0: 2.4}) for _ in range(6)])
    _, watch = run(FedAvg(), grid, 3)
    assert lines(watch) == {3: 1 + 1}, "2.2 is 2,200 times the best, and below w_0's; 2.4 is above both limits"


def test_two_liars_of_six_can_neither_make_a_model_lost_nor_hide_that_it_is() -> None:
    honest = told({0.0: 2.3, 1.0: 2.0, 2.0: 1.0, 3.0: 0.9})
    grid = federation(*[lambda value: {keys.LOSS: 1e300}] * 2, *[honest] * 4)
    _, watch = run(FedAvg(), grid, 3)
    assert lines(watch) == {}
    grid = federation(*[lambda value: {keys.LOSS: 0.0}] * 2, *[honest] * 4)
    _, watch = run(FedAvg(), grid, 3, attacked(grid, (2,)))
    assert lines(watch) == {2: 1}


def test_the_best_loss_is_in_a_checkpoint() -> None:
    grid = federation(*[told({0.0: 2.3, 1.0: 2.0, 2.0: 1.0}) for _ in range(6)])
    strategy, again = FedAvg(), FedAvg()
    run(strategy, grid, 2)
    rounds_of(again).restore(rounds_of(strategy).state())
    assert (rounds_of(again).last_good.best, rounds_of(again).last_good.initial) == (1.0, None)
