"""FedALIGN's figures: the arms are what they are called, and the claims are read off the right rows."""

from pathlib import Path

import pytest
from flwr.app import ArrayRecord

from fedappeal.reproductions import load_experiment
from fedappeal.settings.config import RunConfig
from fedappeal.studies.experiment import Experiment, Missing, Results, RunResult
from fedappeal.studies.plan import slug
from fedappeal.views.comparison.measures import save
from server.build import check_settings
from strategies.fedalign import FedALIGN
from strategies.fedalign.alignment import aligned
from strategies.rounds.exchange.members import Members
from strategies.rounds.round import Round, RoundRecord
from tests.studies.small import holds

FIGURES = ("fedalign-figure1", "fedalign-figure2")
PRIORITY_ONLY, ALL, ALL_LATER, FEDALIGN = "priority only", "all", "all, after warm-up", "FedALIGN"
ACCURACY_MEAN = load_experiment(FIGURES[0]).measure("accuracy-mean")


def configs(experiment: Experiment) -> dict[str, RunConfig]:
    return {arm.name: RunConfig.parse({**experiment.settings, **arm.settings}) for arm in experiment.arms}


def strategy_of(config: RunConfig) -> FedALIGN:
    strategy = check_settings(config).build()
    assert isinstance(strategy, FedALIGN)
    return strategy


def round_of(number: int, config: RunConfig) -> Round:
    return Round(ArrayRecord(), Members(), RoundRecord(number), num_rounds=config.rounds)


@pytest.mark.parametrize("name", FIGURES)
def test_the_arms_are_what_they_are_called(name: str) -> None:
    experiment = load_experiment(name)
    for arm, config in zip(experiment.arms, configs(experiment).values(), strict=True):
        strategy = strategy_of(config)
        late = round_of(config.rounds // 2, config)
        # The best and the worst that a client can say of itself, where errors are compared and where losses are.
        extremes = [aligned(local, 0.5, strategy.epsilon_of(late)) for local in (0.0, 1.0, 50.0)]
        if arm.label == PRIORITY_ONLY:
            assert not any(aligned(x, y, strategy.epsilon_of(late)) for x in (0.0, 1.0) for y in (0.0, 1.0))
        elif arm.label == ALL:
            assert all(extremes)
            assert not strategy.warms_up(round_of(1, config))
        else:
            assert all(extremes) == (arm.label == ALL_LATER)
            numbers = 1, config.rounds // 10, config.rounds // 10 + 1
            assert [strategy.warms_up(round_of(t, config)) for t in numbers] == [True, True, False]


def test_figure_1_is_as_section_4_says() -> None:
    config = configs(load_experiment("fedalign-figure1"))["fedalign"]
    own = strategy_of(config).settings
    assert (config.clients, own.priority_clients, config.rounds) == (60, 2, 200)
    assert (config.local_steps, config.local_epochs, config.learning_rate, own.epsilon) == (0, 5, 0.1, 0.2)
    assert (config.task, config.model, config.partition) == ("fmnist", "logistic", "shards")


def test_figure_2_is_as_section_4_says() -> None:
    found = configs(load_experiment("fedalign-figure2"))
    for noise, epsilon in (("low", 0.2), ("medium", 0.2), ("high", 0.4)):
        config = found[f"fedalign-{noise}"]
        own, synth = strategy_of(config).settings, config.section("synth")
        assert (config.clients, own.priority_clients, synth["noisy"]) == (20, 10, 10)
        assert (synth["alpha"], synth["beta"], config.local_epochs, own.epsilon) == (1, 1, 5, epsilon)
    noise = [found[f"fedalign-{level}"].section("synth")["noise"] for level in ("low", "medium", "high")]
    assert noise == sorted(noise)


@pytest.mark.parametrize("rounds", [100, 200])
def test_the_mean_after_warm_up_leaves_out_a_tenth_of_any_runs_rounds(rounds: int) -> None:
    lines = [{"round": t, "priority_accuracy": 0.1 if t <= rounds // 10 else 0.6} for t in range(1, rounds + 1)]
    assert ACCURACY_MEAN.number(lines) == pytest.approx(60.0)
    lines[rounds // 10 - 1]["priority_accuracy"] = 1.0  # the last one of warm-up
    assert ACCURACY_MEAN.number(lines) == pytest.approx(60.0)
    assert ACCURACY_MEAN.number([]) is None


def results(experiment: Experiment, accuracy: dict[str, float]) -> Results:
    """Return runs of one seed whose accuracy is the same in all rounds."""
    runs = []
    for arm in experiment.arms:
        if arm.name in accuracy:
            lines = [
                {"round": t, "priority_accuracy": accuracy[arm.name], "priority_train_loss": 1.0 / t}
                for t in range(1, 201)
            ]
            runs.append(RunResult(arm, 0, lines, Path()))
    return Results(experiment, tuple(runs))


def test_the_claims_compare_within_their_group() -> None:
    experiment = load_experiment("fedalign-figure2")
    accuracy = {f"{slug(arm)}-low": value for arm, value in ((PRIORITY_ONLY, 0.9), (ALL, 0.7), (FEDALIGN, 0.8))}
    accuracy |= {f"{slug(arm)}-high": value for arm, value in ((PRIORITY_ONLY, 0.1), (ALL, 0.2), (FEDALIGN, 0.3))}
    found = results(experiment, accuracy)

    def number(arm: str, key: str) -> float:
        if not (values := found.numbers(arm, experiment.measure(key))):
            raise Missing(arm)
        return values[0]

    def held(group: str) -> dict[str, bool]:
        of = [c for c in experiment.claims if c.group == group and c.text.startswith(f"{FEDALIGN} over")]
        mine = [c for c in of if ALL_LATER not in c.text]
        return {claim.text: holds(claim, number) for claim in mine}

    assert set(held("high noise").values()) == {True}
    assert len(held("high noise")) == 4
    assert {text: f"over {ALL}:" in text for text in held("low noise")} == held("low noise")
    with pytest.raises(Missing):
        held("medium noise")


def test_what_warm_up_reached_is_compared_with_what_came_after() -> None:
    experiment = load_experiment("fedalign-figure2")
    (arm,) = (arm for arm in experiment.arms if arm.name == f"{slug(ALL_LATER)}-low")
    # 20 rounds of warm-up, evaluated every second one, up to 0.8; then 0.7, at the end 0.9
    lines = [{"round": t, **({} if t % 2 else {"priority_accuracy": 0.04 * t})} for t in range(1, 21)]
    lines += [{"round": t, **({} if t % 2 else {"priority_accuracy": 0.7})} for t in range(21, 200)]
    lines += [{"round": 200, "priority_accuracy": 0.9}]
    found = Results(experiment, (RunResult(arm, 0, lines, Path()),))
    numbers = {m.key: found.numbers(arm.name, m)[0] for m in experiment.measures[:4]}
    assert numbers["accuracy-warm"] == pytest.approx(80)
    assert numbers["accuracy-mean"] == pytest.approx((89 * 70 + 90) / 90)
    harm = [c for c in experiment.claims if c.group == arm.group and "is worse on average" in c.text]
    assert [c.margin(found.of_seed(0)) for c in harm] == [pytest.approx(80 - (89 * 70 + 90) / 90)]


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_shows_what_was_run(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(name)
    assert experiment.figure is not None
    names = [arm.name for arm in experiment.arms if arm.label != ALL][:6]
    save(experiment.figure(results(experiment, dict.fromkeys(names, 0.5))), tmp_path / "figure")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    drawn = (tmp_path / "figure.svg").read_text()
    assert drawn.startswith("<?xml")
    titles = list(dict.fromkeys(arm.group for arm in experiment.arms if arm.name in names))
    assert all(f"<!-- {title} -->" in drawn for title in titles)
    others = {arm.group for arm in experiment.arms} - set(titles)
    assert others
    assert not any(f"<!-- {title} -->" in drawn for title in others)
