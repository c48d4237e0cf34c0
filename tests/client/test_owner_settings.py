"""What an owner decides and a message cannot: which code may run, and what a reply may say."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict

from client.settings import NodeSettings
from fedappeal.core.plugins import ALL, Allowed
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import ConfigError, RunConfig, Scalar
from strategies.fedalign.strategy import PRIORITY
from strategies.mwfed import SATISFIED
from tests.node import Node, changed, metrics_of, run_config
from tests.plugin_folder import IMPORTED, write_distribution, write_module

MODULE = "an_owners_module"
DIGITS = run_config(clients=4, strategy="fedavg", requirement="fixed", local_steps=1)
ZERO = {"weight": np.zeros((2, 1), np.float32), "bias": np.zeros(2, np.float32)}
LINE = Layout.of(ZERO).pack(ZERO)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported from the current folder, and has not been."""
    write_module(tmp_path, MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop(MODULE, None)


def imported() -> bool:
    return MODULE in sys.modules or Path(IMPORTED).exists()


def ask(
    kind: str, config: RunConfig = DIGITS, told: dict[str, Scalar | None] | None = None, **node: Scalar
) -> RecordDict:
    one = Node(config, **{"partition-id": 0, **node})
    # The test itself must not import the owner's module.
    if config.task.startswith(MODULE):
        one.initial = ZERO
    if config.strategy.startswith(MODULE):
        one.told = {}
    return one(kind, None, {keys.SERVER_ROUND: 1, keys.MANDATORY: 1, **(told or {})})


# -- which code may run ----------------------------------------------------------------------------------

OF_THE_RUN = {"task": "Line", "strategy": "Mean", "participation": "Willing", "requirement": "Nothing"}


@pytest.mark.parametrize(
    "allow", ["", "digits", "another.module", f"{MODULE}s", f"{MODULE}.deeper", MODULE[:-1], "*"]
)
@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
@pytest.mark.parametrize("setting", OF_THE_RUN)
def test_code_that_the_run_names_is_not_imported_unless_the_owner_allows_it(
    setting: str, kind: str, allow: str
) -> None:
    name = f"{MODULE}:{OF_THE_RUN[setting]}"
    with pytest.raises(ConfigError) as error:
        ask(kind, changed(DIGITS, **{setting: name}), allow=allow)
    assert str(error.value) == (
        f"{setting} = '{name}' is not allowed: this client's owner has not allowed the package '{MODULE}' "
        f"(--allow {MODULE})"
    )
    assert not imported()


def test_a_name_in_a_mixture_is_checked_too() -> None:
    config = changed(DIGITS, participation=f"{MODULE}:Willing=1,always=0")
    with pytest.raises(ConfigError, match=f"participation = '{MODULE}:Willing' is not allowed: this client's owner"):
        ask("query", config)
    assert not imported()
    assert keys.INFO in ask("query", config, allow=MODULE)


OF_A_MESSAGE: list[tuple[str, dict[str, Scalar | None], str]] = [
    ("train", {keys.LOCAL_RULE: f"{MODULE}:Step"}, "local-rule"),
    ("train", {keys.STRATEGY: f"{MODULE}:Mean"}, "strategy"),
    ("evaluate", {keys.STRATEGY: f"{MODULE}:Mean"}, "strategy"),
    *(
        ("query", {keys.PLUGINS: f"{kind}\t{MODULE}:{name}\tanything"}, kind)
        for kind, name in (*OF_THE_RUN.items(), ("local-rule", "Step"))
    ),
]


@pytest.mark.parametrize(("kind", "told", "setting"), OF_A_MESSAGE)
def test_code_that_a_message_names_is_not_imported_unless_the_owner_allows_it(
    kind: str, told: dict[str, Scalar | None], setting: str
) -> None:
    node = Node(DIGITS, partition_id=0)
    # A run of another's bundle, whose settings name no strategy: a message may.
    node.context.run_config.pop("strategy")
    node.told = {}
    with pytest.raises(ConfigError) as error:
        node(kind, told={keys.MANDATORY: 1, **told})
    line = str(error.value)
    assert line.startswith(f"{setting} = '{MODULE}:")
    assert line.endswith(f"this client's owner has not allowed the package '{MODULE}' (--allow {MODULE})")
    assert not imported()


@pytest.mark.parametrize("allow", [MODULE, f"other, {MODULE}"])
@pytest.mark.parametrize("setting", OF_THE_RUN)
def test_code_that_the_owner_allows_runs(setting: str, allow: str) -> None:
    name = f"{MODULE}:{OF_THE_RUN[setting]}"
    config = changed(DIGITS, **{setting: name})
    arrays = LINE if setting == "task" else None
    node = Node(config, partition_id=0, allow=allow)
    assert keys.INFO in node("query", arrays)
    # The requirement is 1: two points on a line are below it at once, ten digits are not.
    assert metrics_of(node("train", arrays))[keys.DECISION] == int(setting != "strategy")
    assert "accuracy" in metrics_of(node("evaluate", arrays))


def test_a_local_rule_that_the_owner_allows_runs() -> None:
    told: dict[str, Scalar | None] = {keys.LOCAL_RULE: f"{MODULE}:Step"}
    content = ask("train", told=told, allow=MODULE)
    assert content == ask("train"), "it is SGD under another name"
    assert imported()


def test_a_task_of_ones_own_says_what_it_is() -> None:
    content = ask("query", changed(DIGITS, task=f"{MODULE}:Line"), allow=MODULE)
    assert content.config_records[keys.INFO][keys.TASK] == f"{MODULE}:Line"
    assert content.metric_records[keys.METRICS][keys.NUM_EXAMPLES] == 2


@pytest.mark.parametrize("allow", ["", "any", "digits", "another.module:task"])
def test_fedappeals_own_plug_ins_need_no_word_of_the_owner(allow: str) -> None:
    assert ask("query", allow=allow).config_records[keys.INFO][keys.TASK] == "digits"
    for strategy in ("scaffold", "fedalign", "perfedavg"):
        assert keys.INFO in ask("query", changed(DIGITS, strategy=strategy), allow=allow)


def test_the_owners_own_choice_needs_no_further_word() -> None:
    """A policy that the owner names is no message's."""
    own = {"participation": f"{MODULE}:Willing"}
    assert metrics_of(ask("train", changed(DIGITS, fixed__loss=0.0), {keys.MANDATORY: 0}, **own))[keys.DECISION] == 1


def test_what_is_allowed_has_to_be_of_the_kind_that_is_asked_for() -> None:
    for setting, name in (("strategy", "Willing"), ("participation", "Mean"), ("requirement", "Step")):
        with pytest.raises(ConfigError, match=f"{setting} = '{MODULE}:{name}' is not allowed: it is no subclass of "):
            ask("query", changed(DIGITS, **{setting: f"{MODULE}:{name}"}), allow=MODULE)


# -- entry points, by their distribution -----------------------------------------------------------------

PACKAGE = "friendly_policies"
DISTRIBUTION = "friendly-policies"
ENTRIES = f"[fedappeal.policies]\nwilling = {PACKAGE}:Willing\n\n[fedappeal.local_rules]\nstep = {PACKAGE}:Step\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that offers a policy and a local rule as entry points."""
    site = tmp_path / "site"
    write_distribution(site, DISTRIBUTION, "1.5", PACKAGE, ENTRIES)
    write_module(site, PACKAGE)
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop(PACKAGE, None)


@pytest.mark.usefixtures("installed")
def test_an_entry_point_is_allowed_by_its_distribution_or_its_package() -> None:
    config = changed(DIGITS, participation="willing", fixed__loss=0.0)
    with pytest.raises(ConfigError) as error:
        ask("query", config)
    assert str(error.value) == (
        f"participation = 'willing' is not allowed: this client's owner has not allowed the package '{DISTRIBUTION}' "
        f"(--allow {DISTRIBUTION})"
    )
    with pytest.raises(ConfigError, match=f"local-rule = 'step' is not allowed: .*--allow {DISTRIBUTION}"):
        ask("train", told={keys.LOCAL_RULE: "step"})
    assert PACKAGE not in sys.modules
    assert not Path(IMPORTED).exists()
    for allow in (DISTRIBUTION, PACKAGE):
        assert metrics_of(ask("train", config, {keys.MANDATORY: 0}, allow=allow))[keys.DECISION] == 1
    assert ask("train", told={keys.LOCAL_RULE: "step"}, allow=DISTRIBUTION) == ask("train")
    assert PACKAGE in sys.modules


@pytest.mark.usefixtures("installed")
def test_the_name_of_another_distribution_does_not_allow_it() -> None:
    with pytest.raises(ConfigError, match=f"has not allowed the package '{DISTRIBUTION}'"):
        ask("query", changed(DIGITS, participation="willing"), allow="willing,fedappeal,friendly")
    assert PACKAGE not in sys.modules


# -- what a reply may say --------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["owner", "run"])
def test_a_client_that_reports_no_loss_declines_a_run_that_needs_losses(by: str) -> None:
    node: dict[str, Scalar] = {"report-loss": False} if by == "owner" else {}
    needs = changed(DIGITS, strategy="qfedavg")
    config = needs if by == "owner" else changed(needs, report_loss=False)
    line = "report-loss = False is not allowed in this run: its strategy needs the"
    with pytest.raises(ConfigError, match=line) as error:
        ask("query", config, {keys.NEEDS_LOSS: 1}, **node)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=line):
        ask("train", config, **node)
    assert keys.INFO in ask("query", config, {keys.NEEDS_LOSS: 0}, **node)
    assert keys.INFO in ask("query", needs, {keys.NEEDS_LOSS: 1})


def test_what_a_joined_reply_says_besides_is_what_its_strategy_reports() -> None:
    plain = metrics_of(ask("train"))
    assert set(plain) == {keys.NUM_EXAMPLES, keys.DECISION}
    measured = metrics_of(ask("evaluate", told={keys.SPLIT: keys.TRAIN_SPLIT}))
    # Ten classes: the loss of a model that has learned nothing is near ln 10 = 2.3, above the requirement of 1.
    assert 1.5 < measured[keys.LOSS] < 4  # type: ignore[operator]
    for strategy, report in (
        ("qfedavg", {keys.LOSS: measured[keys.LOSS]}),
        ("mwfed", {SATISFIED: 0}),
        ("fedalign", {keys.LOSS: measured[keys.LOSS], PRIORITY: 1}),
    ):
        assert metrics_of(ask("train", changed(DIGITS, strategy=strategy))) == plain | report
    easy = changed(DIGITS, strategy="mwfed", fixed__loss=9.0)
    assert metrics_of(ask("train", easy))[SATISFIED] == 1
    # No message can ask for more.
    assert ask("train", told={"report": "rho,loss", "tuning-steps": 0, "leaving-loss": 1.0}) == ask("train")


def test_the_owners_name_for_a_client_is_its_id() -> None:
    assert ask("query", client_id="anna").config_records[keys.INFO][keys.CLIENT_ID] == "anna"


def test_flowers_own_runtimes_run_what_they_are_sent() -> None:
    """A stock SuperNode unpacks and imports a bundle before this code could refuse: a list would only pretend."""
    assert NodeSettings.parse({"partition-id": 0}).allowed == ALL
    assert NodeSettings.parse({"partition-id": 0, "allow": ""}).allowed == Allowed.of([])
