"""The recorded runs: what each starts, where it is broken off, and how exactly it repeats."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts Fashion-MNIST."""
ARRIVAL = "real processes: sums of floats follow the order in which replies arrive"
NOISE = "each client draws noise from a secret key of its own; so little that the rest of a run comes out alike"

Break = Literal["", "resume", "sigint", "sigterm", "sigkill"]
"""How a run is broken off before it is continued; resume: it ends early, and continues to more rounds."""
Runtime = Literal["simulate", "local", "flower", "api"]


@dataclass(frozen=True)
class Case:
    """One recorded run, or one sweep.

    Attributes:
        name: unique; its first part says what the case is about.
        options: of the command line; for the runtime ``api``, the name of a function in `tests.recording.api_runs`.
        runtime: what starts it.
        broken: how it is broken off in the middle.
        rounds: total at the end; a run that is resumed begins with half of them.
        core: whether it is one of the quick checks.
        runs: the runs' folders below the case's; a run of its own: itself.
        tolerance: why two runs of the same code may differ in the last bits; empty: they may not.
        needs: a folder without which the case cannot run.
        files: names and texts of files that are there when it starts, in its working folder.
    """

    name: str
    options: tuple[str, ...] = ()
    runtime: Runtime = "simulate"
    broken: Break = ""
    rounds: int = 4
    core: bool = False
    runs: tuple[str, ...] = (".",)
    tolerance: str = ""
    needs: Path | None = None
    files: tuple[tuple[str, str], ...] = ()

    @property
    def first_rounds(self) -> int:
        """Rounds with which it begins."""
        return self.rounds // 2 if self.broken == "resume" else self.rounds


SMALL = (
    *("--clients", "6", "--local-steps", "4", "--batch-size", "16", "--max-train-examples", "60"),
    *("--set", "solo.steps=8", "--mandatory-rounds", "1", "--goodwill", "2"),
)
"""What all runs have in common where a case does not say otherwise: so little that a run takes a second."""
STRATEGIES = {
    "maxfl": "",
    "fedalign": "",
    "adagd": "adagd.form=one-gradient adagd.precision=1.1",
    "maxfl-adagd": "maxfl-adagd.form=one-gradient maxfl-adagd.precision=1.1",
    "fedavg": "",
    "fedprox": "fedprox.proximal-mu=0.5",
    "fedadam": "",
    "fednova": "",
    "scaffold": "",
    "fedau": "",
    "oracle": "oracle.probabilities=0.5",
    "mifa": "",
    "qfedavg": "",
    "afl": "",
    "term": "",
    "mwfed": "",
    "ditto": "",
    "perfedavg": "",
    "pfedme": "",
}
"""Each strategy with a setting of its own."""
POLICIES_OF_THEIRS = {"fedalign": "match", "adagd": "defect", "maxfl-adagd": "defect"}
"""Policies that belong to a strategy; with the others, who joins varies by chance in their resumed runs."""
ONE_BY_ONE = ("perfedavg", "pfedme")
"""Strategies whose clients have no form side by side."""
AVAILABILITY = "bernoulli", "markov", "diurnal", "trace", "device"
TRACE = "client-0000,1,2\nclient-0001,2,4\n*,1,3\n"


def cases() -> list[Case]:
    """Return all cases; their names differ."""
    every = [*_all()]
    names = [case.name for case in every]
    if len({*names}) < len(names):
        raise ValueError(f"two cases are called {sorted({name for name in names if names.count(name) > 1})}")
    return every


def _all() -> Iterator[Case]:
    yield from _strategies()
    yield from _settings_of_strategies()
    yield from _forms()
    yield from _participation()
    yield from _judgement()
    yield from _server()
    yield from _training()
    yield from _tasks()
    yield from _breaks()
    yield from _others()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _settings(text: str) -> tuple[str, ...]:
    return ("--set", text) if text else ()


def _strategies() -> Iterator[Case]:
    for name, setting in STRATEGIES.items():
        options = ("--strategy", name, *_settings(setting))
        mode = "sequential" if name in ONE_BY_ONE else "layers"
        yield Case(f"strategy/{name}", (*options, "--mode", mode), core=True)
        policy = POLICIES_OF_THEIRS.get(name, "always")
        varied = ("--participation", f"{policy}+bernoulli", "--set", "bernoulli.available=0.6", "--seed", "3")
        yield Case(f"strategy/{name}/resumed", (*options, "--mode", mode, *varied), broken="resume", rounds=6)
        if name not in ONE_BY_ONE:
            yield Case(f"strategy/{name}/sequential", (*options, "--mode", "sequential"))


def _settings_of_strategies() -> Iterator[Case]:
    rare = ("--participation", "always+bernoulli", "--set", "bernoulli.available=0.4 fedau.cutoff=2")
    yield Case("settings/fedau/1", ("--strategy", "fedau", *rare), rounds=8)
    variants = {
        "maxfl": (
            "maxfl.step-sizes=theorem-3.1 maxfl.local-steps=4",
            "maxfl.tuning-steps=2",
            "maxfl.server-lr=0.5 maxfl.stabilizer=0.1",
        ),
        "fedalign": (
            "fedalign.epsilon-schedule=linear fedalign.warmup-rounds=0",
            "fedalign.epsilon-schedule=exponential fedalign.epsilon-decay=0.5",
            "fedalign.epsilon-schedule=step fedalign.epsilon=0.05 fedalign.warmup-share=0",
            "fedalign.match-on=error fedalign.epsilon=0.1",
            "fedalign.global-loss=stale",
            "fedalign.max-non-priority-weight=0.1 fedalign.priority-clients=2",
            "fedalign.priority-ids=client-0001,client-0004",
        ),
        "adagd": (
            "adagd.gradient-batch=8 adagd.precision=1.1",
            "adagd.gradient-steps=2 adagd.precision=1.1",
            "adagd.form=one-gradient adagd.on-missing=proceed adagd.precision=1.12 defect.leave-below=2.25",
            "adagd.slack=1.2 adagd.precision=1.8 adagd.step-size=0.5",
        ),
        "fedadam": ("fedadam.bias-correction=true fedadam.beta1=0.5",),
        "qfedavg": ("qfedavg.q=0", "qfedavg.q=2 qfedavg.learning-rate=0.05"),
        "afl": ("afl.mixture-rate=1",),
        "term": ("term.tilt=-1", "term.tilt=2 term.share=1 term.server-lr=0.5"),
        "mwfed": ("mwfed.local-steps=3",),
        "ditto": ("ditto.personal-lambda=0",),
        "perfedavg": ("perfedavg.maml-order=first", "perfedavg.adaptation-steps=0"),
        "pfedme": ("pfedme.moreau-steps=2 pfedme.server-mixing=0.5",),
        "oracle": ("oracle.probabilities=client-0000=0.3,client-0001=0.9 oracle.server-lr=0.5",),
    }
    for name, settings in variants.items():
        for place, setting in enumerate(settings):
            mode = "sequential" if name in ONE_BY_ONE else "layers"
            tuned = ("--adaptation-steps", "0") if "tuning-steps" in setting else ()
            options = ("--strategy", name, "--set", setting, "--mode", mode, *tuned)
            yield Case(f"settings/{name}/{place + 1}", options, broken="resume" if place % 3 == 1 else "")


def _forms() -> Iterator[Case]:
    for model in ("mlp", "logistic", "cnn"):
        for mode in ("layers", "vmap", "sequential"):
            options = ("--model", model, "--mode", mode, "--task", "digits")
            core = model == "mlp" and mode == "vmap"
            yield Case(f"form/{model}/{mode}", options, broken="resume" if mode == "vmap" else "", core=core)
    yield Case("form/auto", _words("--mode auto --clients 5"))
    yield Case("form/batched", _words("--mode batched"))
    yield Case("form/vmap/scaffold", _words("--mode vmap --strategy scaffold"))
    yield Case("form/vmap/ditto", _words("--mode vmap --strategy ditto"), broken="resume")
    yield Case(
        "form/vmap/adagd",
        _words("--mode vmap --strategy adagd --set adagd.form=one-gradient --set adagd.precision=1.1"),
    )
    yield Case("form/two-threads/sequential", _words("--mode sequential --threads 2"), broken="resume", core=True)
    yield Case("form/two-threads/layers", _words("--mode layers --threads 2"))
    yield Case("form/evaluation-in-bfloat16", _words("--mode layers --evaluation-precision bfloat16"), core=True)
    yield Case(
        "form/evaluation-in-bfloat16/resumed",
        _words("--mode sequential --evaluation-precision bfloat16 --strategy fedavg"),
        broken="resume",
    )
    yield Case("form/training-in-bfloat16", _words("--mode sequential --training-precision bfloat16"))


def _participation() -> Iterator[Case]:
    unmet = ("--requirement", "fixed", "--set", "fixed.loss=2.25")
    for policy in ("always", "appeal", "match", "defect", "anticipate"):
        settings = {"defect": "defect.leave-below=2.26", "anticipate": "anticipate.horizon=2 anticipate.window=1"}
        options = ("--participation", policy, *unmet, *_settings(settings.get(policy, "")))
        yield Case(f"participation/{policy}", (*options, "--strategy", "fedavg"), rounds=5, core=True)
        yield Case(f"participation/{policy}/resumed", (*options, "--seed", "5"), broken="resume")
    behaviours = {
        "inertia": "inertia.rounds=2",
        "costly": "costly.cost=0.05",
        "rest": "rest.rounds=2",
        "once": "",
        "bernoulli": "bernoulli.available=0.6",
        "markov": "markov.goes=0.4 markov.returns=0.4",
        "diurnal": "diurnal.period=4",
        "trace": "trace.file=trace.csv trace.repeat=4",
        "device": "device.steps=5 device.bandwidth=100000",
    }
    trace = (("trace.csv", TRACE),)
    for behaviour, setting in behaviours.items():
        options = ("--participation", f"appeal+{behaviour}", *unmet, *_settings(setting))
        files = trace if behaviour == "trace" else ()
        yield Case(f"behaviour/{behaviour}", options, rounds=5, files=files, core=behaviour in ("rest", "trace"))
        yield Case(
            f"behaviour/{behaviour}/resumed", (*options, "--seed", "2"), broken="resume", rounds=6, files=files
        )
    leaves = ("--set", "inertia.rounds=2 inertia.then=leave", *unmet)
    yield Case("behaviour/inertia/leave", ("--participation", "appeal+inertia", *leaves), rounds=5)
    yield Case("behaviour/inertia/defect", ("--participation", "defect+inertia", *leaves), rounds=5)
    yield Case(
        "behaviour/three",
        ("--participation", "defect+inertia+markov+rest", *unmet, "--set", "defect.leave-below=2.26 rest.rounds=2"),
        rounds=6,
        broken="resume",
    )
    yield Case("mixture/two", ("--participation", "appeal=0.5,always=0.5", *unmet), core=True)
    yield Case("mixture/three", ("--participation", "appeal=0.4,defect=0.3,always=0.3", *unmet), broken="resume")
    yield Case("mixture/behaviours", ("--participation", "appeal+rest=0.5,defect+inertia+markov=0.5", *unmet))
    yield Case(
        "leavers/unmeasured", _words("--participation defect --no-measure-leavers --set defect.leave-below=2.26")
    )
    for value in ("ask-all", "keep"):
        never = ("--requirement", "fixed", "--set", "fixed.loss=0.01", "--goodwill", "0", "--mandatory-rounds", "0")
        yield Case(f"on-empty-round/{value}", (*never, "--on-empty-round", value), broken="resume")
    never_met = ("--requirement", "fixed", "--set", "fixed.loss=0.01")
    yield Case("mandatory/auto", _words("--mandatory-rounds auto --goodwill 20"), rounds=5)
    yield Case("mandatory/all", (*_words("--mandatory-rounds -1 --goodwill -1"), *unmet), broken="resume")
    yield Case("mandatory/goodwill", (*_words("--mandatory-rounds 5 --goodwill 2"), *never_met), rounds=5, core=True)
    yield Case("mandatory/no-goodwill", (*_words("--mandatory-rounds 2 --goodwill 0"), *unmet))


def _judgement() -> Iterator[Case]:
    yield Case("requirement/solo", _words("--requirement solo --set solo.steps=3 --set solo.learning-rate=0.2"))
    yield Case("requirement/fixed", _words("--requirement fixed --set fixed.loss=2.2"), broken="resume")
    yield Case("requirement/metric", _words("--requirement metric --set metric.reach=0.15 --strategy fedavg"))
    yield Case(
        "requirement/metric/resumed",
        _words("--requirement metric --set metric.reach=0.3 --strategy fedprox --judge-on train"),
        broken="resume",
    )
    for data in ("held-out", "train"):
        for steps in ("0", "5"):
            options = ("--judge-on", data, "--adaptation-steps", steps, "--learning-rate", "0.2")
            broken: Break = "resume" if steps == "0" else ""
            yield Case(f"judge/{data}/{steps}", options, broken=broken, core=data == "train" and steps == "0")
    yield Case("judge/personal/ditto", _words("--strategy ditto --judge-on train --adaptation-steps 0"))
    yield Case(
        "judge/personal/perfedavg",
        _words("--strategy perfedavg --judge-on train --adaptation-steps 0 --mode sequential"),
        broken="resume",
    )
    yield Case("judge/personal/pfedme", _words("--strategy pfedme --judge-on train --mode sequential"))
    yield Case("loss-mode/training", _words("--loss-mode training --judge-on train --mode layers"))
    yield Case(
        "loss-mode/training/resumed",
        _words("--loss-mode training --judge-on train --mode sequential"),
        broken="resume",
    )
    yield Case("loss-mode/training/vmap", _words("--loss-mode training --judge-on train --mode vmap"))
    yield Case("judge/tuning-steps", _words("--tuning-steps 3 --adaptation-steps 0"), broken="resume")
    yield Case("judge/papers", _words("--judge-on train --adaptation-steps 0 --goodwill -1 --mandatory-rounds -1"))


def _server() -> Iterator[Case]:
    for attack in ("inflate", "claim", "zero", "huge", "flip"):
        options = ("--byzantine-share", "0.34", "--byzantine-attack", attack)
        yield Case(f"attack/{attack}", options)
        yield Case(f"attack/{attack}/bounded", (*options, "--influence", "bounded"), broken="resume")
    for strategy in ("fedavg", "fednova", "scaffold", "fedalign", "adagd", "qfedavg", "mifa"):
        bounded = (
            "--strategy",
            strategy,
            *_words("--influence bounded --byzantine-share 0.2 --byzantine-attack flip"),
            *_settings("adagd.form=one-gradient" if strategy == "adagd" else ""),
        )
        yield Case(f"influence/{strategy}", bounded, broken="resume" if strategy == "fedavg" else "")
    yield Case("influence/tight", _words("--influence bounded --influence-weight 1 --influence-norm 1"), core=True)
    for aggregation in ("median", "trimmed-mean"):
        robust = ("--strategy", "fedavg", "--aggregation", aggregation)
        yield Case(f"aggregation/{aggregation}", robust, core=True)
        yield Case(f"aggregation/{aggregation}/resumed", (*robust, *_words("--trim-share 0.4")), broken="resume")
    yield Case("aggregation/median/bounded", _words("--strategy fedprox --aggregation median --influence bounded"))
    yield Case("sampling/two", _words("--clients 8 --clients-per-round 2"), rounds=5)
    unmet = _words("--clients 8 --clients-per-round 3 --requirement fixed --set fixed.loss=2.25 --goodwill 0")
    yield Case("sampling/ask-on", unmet, broken="resume", rounds=6, core=True)
    yield Case("sampling/no-ask-on", (*unmet, "--no-ask-on"))
    yield Case("sampling/fedavg", _words("--clients 8 --clients-per-round 4 --strategy fedavg"), broken="resume")
    yield Case("evaluate/every-2", _words("--evaluate-every 2"), rounds=5)
    yield Case("evaluate/every-3/resumed", _words("--evaluate-every 3"), rounds=6, broken="resume")
    yield Case("evaluate/never", _words("--evaluate-every 0"))
    yield Case("evaluate/no-train", _words("--no-evaluate-train"))
    yield Case("evaluate/train-loss", _words("--report-train-loss"))
    yield Case("evaluate/no-loss", _words("--no-report-loss"), broken="resume")
    yield Case("evaluate/unseen", _words("--unseen-clients 3"), core=True)
    yield Case(
        "evaluate/unseen/resumed",
        _words("--unseen-clients 2 --strategy perfedavg --mode sequential"),
        broken="resume",
    )
    yield Case("pack/off", _words("--no-pack"))
    yield Case("pack/off/scaffold", _words("--no-pack --strategy scaffold"), broken="resume")
    yield Case("share/no-output", ("--share", "!output.*"), broken="resume")
    yield Case("share/patterns", ("--share", "hidden1.*", "--strategy", "fedavg"))


def _training() -> Iterator[Case]:
    yield Case("privacy/clipping", _words("--clipping-norm 0.05"))
    noise = _words("--clipping-norm 0.1 --dp-epsilon 1000 --dp-sensitivity 0.0000001")
    yield Case("privacy/dp", noise, broken="resume", tolerance=NOISE)
    yield Case("privacy/dp/fedavg", (*noise, "--strategy", "fedavg", "--dp-delta", "0.001"), tolerance=NOISE)
    yield Case("lr/linear", _words("--lr-schedule linear --lr-final-share 0.5"))
    yield Case("lr/cosine", _words("--lr-schedule cosine --lr-warmup-rounds 1"), broken="resume")
    yield Case("lr/warmup", _words("--lr-warmup-rounds 2 --strategy fedavg"))
    yield Case("rule/adamw", _words("--local-rule adamw --learning-rate 0.01 --weight-decay 0.1 --mode sequential"))
    yield Case(
        "rule/adamw/resumed",
        _words("--local-rule adamw --set adamw.beta1=0.5 --strategy fedavg --learning-rate 0.01 --mode sequential"),
        broken="resume",
    )
    yield Case("rule/prox", _words("--local-rule prox --set fedprox.proximal-mu=0.3 --strategy maxfl"))
    yield Case("rule/momentum", _words("--momentum 0.9 --weight-decay 0.01"), broken="resume")
    yield Case("rule/momentum/sequential", _words("--momentum 0.9 --weight-decay 0.01 --mode sequential"))
    yield Case("rule/epochs", _words("--local-steps 0 --local-epochs 1"))
    for strategy in ("fednova", "scaffold"):  # whose clients then take different numbers of steps
        epochs = ("--strategy", strategy, *_words("--local-steps 0 --local-epochs 2 --max-train-examples 0"))
        yield Case(f"rule/epochs/{strategy}", epochs, broken="resume" if strategy == "fednova" else "")
    yield Case("rule/large-batch", _words("--batch-size 500"))


def _tasks() -> Iterator[Case]:
    for partition in ("iid", "dirichlet", "shards", "clusters", "dirichlet-clusters"):
        yield Case(f"partition/{partition}", ("--partition", partition), core=partition == "shards")
    yield Case("partition/dirichlet/skewed", _words("--dirichlet-alpha 0.1 --min-examples 5"), broken="resume")
    yield Case("partition/clusters/drawn", _words("--partition clusters --clusters 2 --cluster-alpha 1"))
    yield Case("partition/dirichlet-clusters/2", _words("--partition dirichlet-clusters --clusters 2"))
    yield Case("partition/shards/3", _words("--partition shards --shards-per-client 3 --train-share 0.8"))
    yield Case("partition/flipped", _words("--flip-share 0.5"))
    yield Case("partition/flipped/train", _words("--flip-share 0.5 --flip-on train"), broken="resume")
    yield Case("task/synth", _words("--task synth"), core=True)
    yield Case("task/synth/resumed", _words("--task synth --set synth.alpha=0 --set synth.beta=2"), broken="resume")
    yield Case(
        "task/synth/noisy",
        ("--task", "synth", "--set", "synth.noisy=2 synth.noise=0.4 synth.noise-form=shifted synth.examples=80"),
    )
    yield Case("task/synth/logistic", _words("--task synth --model logistic --strategy fedalign --mode sequential"))
    few = ("--train-share", "0.98")  # the rest is test data: thousands of images
    for name, options in {
        "fmnist": ("--task", "fmnist", "--model", "mlp"),
        "fmnist/cnn": ("--task", "fmnist", "--model", "cnn", "--local-steps", "2", "--clients", "4"),
        "fmnist/cnn/sequential": _words("--task fmnist --model cnn --local-steps 2 --clients 4 --mode sequential"),
    }.items():
        yield Case(f"task/{name}", (*options, *few), needs=FASHION, rounds=3)
    yield Case(
        "task/fmnist/resumed", (*_words("--task fmnist --strategy fedavg"), *few), needs=FASHION, broken="resume"
    )
    yield Case("task/movielens", _words("--task movielens"), rounds=3)
    yield Case("task/chem97", _words("--task chem97 --strategy fedavg"), broken="resume")


def _breaks() -> Iterator[Case]:
    slow = ("--local-steps", "12", "--evaluate-every", "1")
    yield Case("break/sigint", (*slow, "--mode", "layers"), broken="sigint", rounds=30, core=True)
    yield Case("break/sigint/scaffold", (*slow, "--strategy", "scaffold"), broken="sigint", rounds=30)
    yield Case("break/sigint/ditto", (*slow, "--strategy", "ditto"), broken="sigint", rounds=30)
    yield Case("break/sigterm", (*slow, "--participation", "appeal+markov"), broken="sigterm", rounds=30)
    yield Case("break/sigkill", (*slow, "--strategy", "fedalign"), broken="sigkill", rounds=30)
    yield Case("break/sigkill/mifa", (*slow, "--strategy", "mifa"), broken="sigkill", rounds=30)


def _others() -> Iterator[Case]:
    one = ("seed-0", "seed-1")
    yield Case("sweep/seeds", ("--sweep", "seed=0..1"), runs=one)
    strategies = (
        "strategy-maxfl-seed-0",
        "strategy-maxfl-seed-1",
        "strategy-fedavg-seed-0",
        "strategy-fedavg-seed-1",
    )
    swept = _words("--sweep strategy=maxfl,fedavg --sweep seed=0..1 --jobs 2")
    yield Case("sweep/jobs", swept, runs=strategies)
    yield Case("workers/two", _words("--workers 2 --mode layers"))
    yield Case("workers/two/resumed", _words("--workers 2 --strategy scaffold --mode sequential"), broken="resume")
    yield Case("local/maxfl", _words("--clients 3"), "local", rounds=3, tolerance=ARRIVAL)
    yield Case("local/scaffold", _words("--clients 3 --strategy scaffold"), "local", "resume", tolerance=ARRIVAL)
    yield Case(
        "local/fedalign",
        _words("--clients 4 --strategy fedalign --influence off --participation appeal+rest --set rest.rounds=2"),
        "local",
        rounds=3,
        tolerance=ARRIVAL,
    )
    yield Case("flower/maxfl", _words("clients=3"), "flower", rounds=3, tolerance=ARRIVAL)
    yield Case("api/simulate", ("named",), "api", core=True)
    yield Case("api/resumed", ("named",), "api", "resume")
    yield Case("api/own-model", ("own_model",), "api", core=True)
    yield Case("api/own-model/resumed", ("own_model",), "api", "resume")
    yield Case("api/own-strategy", ("own_strategy",), "api")
    yield Case("api/own-transformer", ("own_transformer",), "api")
    yield Case("api/sweep", ("swept",), "api", runs=("strategy-fedavg", "strategy-maxfl"))
