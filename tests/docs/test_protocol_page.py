"""docs/protocol.md: it names all that is on the wire, and what it says in numbers is what the code does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from fedappeal.core.registry import STRATEGIES
from fedappeal.core.requirement import Evaluation, Measured
from fedappeal.protocol import keys
from fedappeal.protocol.packing import Layout
from fedappeal.settings.config import RunConfig
from fedappeal.settings.training import LocalTrainingSettings
from server.build import check_settings
from strategies.rounds.exchange.exchange import content_size
from strategies.rounds.exchange.members import Member, Members
from strategies.rounds.exchange.messages import evaluate_messages, train_messages
from tests.docs.pages import DOCS, ROOT

TEXT = (DOCS / "protocol.md").read_text()
QUOTED = set(re.findall(r"`([^`\n]+)`", TEXT))
NAMED = {word for quoted in QUOTED for word in re.findall(r"[A-Za-z0-9.-]+", quoted)}
TRAINING = frozenset(LocalTrainingSettings.keys())
_KEY = re.compile(r"[a-z]+(-[a-z]+)*")


def constants(path: Path) -> Iterator[str]:
    """The texts that a module gives a public name in capitals, where they can be keys."""
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if _KEY.fullmatch(node.value.value) and all(name.isupper() and name[0] != "_" for name in names):
                yield node.value.value


def test_every_key_of_the_protocol_is_on_the_page() -> None:
    shared = set(constants(Path(str(keys.__file__))))
    assert len(shared) > 30
    assert shared - NAMED == set()


def test_every_key_of_an_algorithm_is_on_the_page() -> None:
    files = [path for path in (ROOT / "strategies").rglob("*.py") if "rounds" not in path.parts]
    own = {(path.name, key) for path in files for key in constants(path)}
    assert len(own) > 8
    assert {(file, key) for file, key in own if not any(key == each.rpartition(".")[2] for each in NAMED)} == set()


@pytest.mark.parametrize("name", STRATEGIES.built_in)
def test_what_each_strategy_asks_and_says_is_in_its_row(name: str) -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
    strategy = check_settings(RunConfig(strategy=name)).build()
    claims = strategy.report(Measured(Evaluation(1.0, 0.5), rho=1.0, met=False))
    if not rows:
        assert (set(claims), set(strategy.reply_records)) == (set(), set()), "a row says what it sends"
        return
    (row,) = rows
    down, up = row.split("|")[2], row.split("|")[3]
    assert set(re.findall(r"`([a-z-]+)`: ", up)) == set(claims)
    assert set(re.findall(r"record `([a-z-]+)`", up)) == set(strategy.reply_records)
    told = set(re.findall(r"`([a-z.-]+)`: ", down))
    assert all(key.startswith(f"{name}.") or key in TRAINING for key in told)


def test_a_train_message_holds_what_the_table_says() -> None:
    table = TEXT[TEXT.index("## Train") : TEXT.index("### What each strategy adds")]
    assert {f"`{key}`" for key in TRAINING} <= set(re.findall(r"`[a-z-]+`", table))


def test_decisions_and_version_are_those_of_the_code() -> None:
    assert f"`protocol` is {keys.PROTOCOL}." in TEXT
    assert [int(decision) for decision in keys.Decision] == [1, 0, -1]
    assert "1 joined, 0 sat out, -1 left for good" in TEXT
    assert keys.MOST_EXAMPLES == 10**12
    assert "1 to 10^12" in TEXT


def test_the_example_of_a_layout_hash_is_right() -> None:
    arrays = {
        "weight": np.zeros((2, 3), np.float32),
        "bias": np.zeros(2, np.float32),
        "steps": np.zeros((), np.int64),
    }
    layout = Layout.of(arrays)
    assert f"\n{layout.entries!r}\n" in TEXT
    assert f"`{layout.hash}`" in TEXT
    packed = layout.pack(arrays)
    assert {name: packed[name].numpy().shape for name in packed} == {"flat": (8,), "flat-int64": (1,)}
    assert {"flat", "flat-int64"} <= NAMED
    values = layout.pack({**arrays, "bias": np.array([1, 2], np.float32)})["flat"].numpy()
    assert values[:2].tolist() == [1.0, 2.0]


def test_groups_and_deadlines_are_as_the_page_has_them() -> None:
    from fedappeal.flower.messages import be_sender
    from strategies.rounds.round import NOTHING, Round, RoundRecord

    be_sender(1, 1, 1)
    member, model = Member("c", 5), ArrayRecord()
    round = Round(model, Members(), RoundRecord(3))
    ((_, train),) = train_messages(round, [member], {}, NOTHING, 12.5)
    ((_, evaluate),) = evaluate_messages([member], model, {keys.SERVER_ROUND: 3}, 60.0)
    assert (train.metadata.message_type, train.metadata.group_id, train.metadata.ttl) == ("train", "3", 12.5)
    assert (evaluate.metadata.message_type, evaluate.metadata.ttl) == ("evaluate", 60.0)
    assert content_size(train.content) < 2048
    config = RunConfig()
    for name, seconds in (("start-timeout", config.start_timeout), ("round-timeout", config.round_timeout)):
        assert f"`{name}` ({seconds:g} s)" in TEXT
