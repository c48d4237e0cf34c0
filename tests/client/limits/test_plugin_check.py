"""The roll call carries what code the run's plug-ins are; a client that has other code declines in one line."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.named import check_plugins
from fedappeal.core import plugins
from fedappeal.core.plugins import ALL, Allowed
from fedappeal.protocol import keys
from fedappeal.settings.config import ConfigError, RunConfig
from fedappeal.tasks import load_task
from server.build import run_plugins
from server.server_run import roll_call_settings
from tests.node import Node, run_config
from tests.plugin_folder import CODE, write_distribution, write_module

MODULE = "checked_plugins"
CONFIG = run_config(
    clients=4,
    strategy=f"{MODULE}:Mean",
    participation=f"appeal=0.5,{MODULE}:Willing=0.5",
    requirement=f"{MODULE}:Nothing",
    local_rule=f"{MODULE}:Step",
    local_steps=1,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_module(tmp_path, MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._distributions.cache_clear()
    yield tmp_path
    sys.modules.pop(MODULE, None)
    plugins._distributions.cache_clear()


def announced(config: RunConfig = CONFIG) -> str:
    """What the server's roll call says of the run's plug-ins."""
    return str(roll_call_settings(run_plugins(config), load_task(config.task_settings()))[keys.PLUGINS])


def source(code: str = CODE) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def test_the_server_announces_what_does_not_come_with_fedappeal() -> None:
    lines = announced().split("\n")
    where = f"(no distribution, source {source()})"
    assert lines == [
        f"strategy\t{MODULE}:Mean\t{MODULE}:Mean {where}",
        f"participation\t{MODULE}:Willing\t{MODULE}:Willing {where}",
        f"local-rule\t{MODULE}:Step\t{MODULE}:Step {where}",
        f"requirement\t{MODULE}:Nothing\t{MODULE}:Nothing {where}",
    ]
    assert announced(run_config(strategy="scaffold")) == ""
    task = run_config(task=f"{MODULE}:Line", model=f"{MODULE}:Net")
    assert [kind for kind, _ in run_plugins(task).foreign()] == ["task", "model"]


def test_a_model_of_ones_own_runs_where_the_owner_allowed_its_package() -> None:
    config = run_config(model=f"{MODULE}:Net")
    assert keys.INFO in Node(config, allow=MODULE)("query", plugins=announced(config))
    with pytest.raises(ConfigError, match=r"model = 'checked_plugins:Net' .* has not allowed the package"):
        Node(config, allow="")("query", plugins="")  # whatever the roll call says
    config = run_config(model="torchvision:mobilenet_v3_small", requirement="fixed")
    assert keys.INFO in Node(config, allow="")("query")


def test_the_same_code_is_enrolled(folder: Path) -> None:
    node = Node(CONFIG, allow=MODULE)
    assert keys.INFO in node("query", plugins=announced())
    check_plugins(announced(), ALL)
    check_plugins("", Allowed.of([]))


@pytest.mark.parametrize("kind", ["strategy", "participation", "local-rule", "requirement"])
def test_other_code_is_one_line_that_names_both(kind: str, folder: Path) -> None:
    said = announced()
    (line,) = [line for line in said.split("\n") if line.startswith(f"{kind}\t")]
    _, name, theirs = line.split("\t")
    more = CODE + "\n# another edition\n"
    write_module(folder, MODULE, more)
    with pytest.raises(ConfigError) as error:
        Node(CONFIG, allow=MODULE)("query", plugins=line)
    ours = f"{name} (no distribution, source {source(more)})"
    assert str(error.value) == f"{kind} differs: this client has {ours}, the run {theirs}"
    assert "\n" not in str(error.value)


def test_another_version_of_the_same_distribution_differs(folder: Path) -> None:
    theirs = announced().split("\n")[0].replace("no distribution", "checked-plugins 1.0")
    write_distribution(folder, "checked-plugins", "2.0", MODULE, "")
    plugins._distributions.cache_clear()  # as in another process
    with pytest.raises(ConfigError) as error:
        Node(CONFIG, allow=MODULE)("query", plugins=theirs)
    assert str(error.value) == (
        f"strategy differs: this client has {MODULE}:Mean (checked-plugins 2.0, source {source()}), "
        f"the run {MODULE}:Mean (checked-plugins 1.0, source {source()})"
    )


def test_code_that_is_not_here_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match="local-rule = 'nowhere:Rule' cannot be imported: ModuleNotFoundError"
    ) as error:
        check_plugins("local-rule\tnowhere:Rule\tnowhere:Rule (nowhere 1.0, source 00)", Allowed.of(["nowhere"]))
    assert "\n" not in str(error.value)


def test_a_kind_of_a_later_version_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^plug-in kind 'sampler' is not known to this client: strategy, local-rule"
    ):
        check_plugins("sampler\tmine:Own\tmine:Own (mine 1.0, source 00)", ALL)


@pytest.mark.parametrize("kind", ["strategy", "participation", "local-rule", "requirement", "task"])
def test_a_roll_call_learns_nothing_of_what_is_no_plug_in(kind: str) -> None:
    for name in ("server.app:ServerApp", "fedappeal.core.plugins:Path", "client.named:check_plugins"):
        line = rf"^{kind} = '{name}' is not allowed: '{name.partition(':')[0]}' holds none that a run may name$"
        with pytest.raises(ConfigError, match=line):
            check_plugins(f"{kind}\t{name}\tx", Allowed.of([]))
