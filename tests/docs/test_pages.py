"""README and docs: what they name is there, what they print can be typed, and the words are plain."""

import ast
import importlib
import inspect
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, reduce
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer

import strategies
from fedappeal.cli.commands import cli
from fedappeal.cli.options import plugin_options
from fedappeal.cli.reference import renew_tables, tables
from fedappeal.core.plugins import Plugin
from fedappeal.core.registry import LOCAL_RULES, POLICIES, REQUIREMENTS, STRATEGIES
from fedappeal.flower.superlink.superlink_process import Ports
from fedappeal.settings.config import RunConfig
from fedappeal.tasks import TASKS
from fedappeal.views.tracking.tracker import chosen_trackers
from server.build import check_settings
from strategies.rounds.strategy import shared_of
from tests.docs.pages import DOCS, ROOT, pages
from tests.test_imports import RANKS

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in pages()}
ROOMS = ("strategies", "client", "server", "fedappeal", "tests", "docs", "docker", "benchmarks")
OLD_WORDS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|someone|anyone|whoever|those (who|that)|so many|(go|goes|gone) on)\b",
    re.IGNORECASE,
)
GENERAL = frozenset(RunConfig.keys())
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def each_page(test: object) -> object:
    return pytest.mark.parametrize("page", PAGES)(test)


# -- what is named is there ----------------------------------------------------------------------------


@cache
def names_of(path: Path) -> frozenset[str]:
    """The names that a module has at its top, and of its classes, as ``Class.name``."""
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    collect(ast.parse(path.read_text()).body, "")
    return frozenset(found)


@each_page
def test_every_file_and_name_of_the_code_is_there(page: str) -> None:
    missing = []
    for quoted in re.findall(r"`([^`\n]+)`", PAGES[page]):
        path, _, name = quoted.partition(": ")
        if not re.fullmatch(rf"({'|'.join(ROOMS)})/[\w./-]*", path) or "NAME" in path:
            continue
        file = ROOT / path if (ROOT / path).exists() else (ROOT / path).with_suffix(".py")
        if not file.exists() or (name and file.suffix == ".py" and name not in names_of(file)):
            missing.append(quoted)
    assert missing == []


def test_the_picture_of_a_round_names_functions_that_are_there() -> None:
    text = PAGES["docs/architecture.md"]
    picture = text[text.index("## One round") : text.index("A star marks")]
    calls = re.findall(r"^ *(?:\([abc]\) )?([A-Za-z]\w*(?:\.\w+)?).*?\s{2,}([\w/]+\.py)", picture, re.MULTILINE)
    assert len(calls) > 40
    assert [(name, path) for name, path in calls if not (ROOT / path).exists()] == []
    assert [(name, path) for name, path in calls if name not in names_of(ROOT / path)] == []


def misprinted(function: Callable[..., object], printed: str) -> bool:
    """Whether the printed arguments are not the function's first; without ``...`` the others need defaults."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.name != "self" and p.kind not in many
    ]
    names = [part.partition("=")[0].strip() for part in printed.split(",") if part.strip() not in ("", "...")]
    others = parameters[len(names) :]
    needed = not printed.endswith("...") and any(p.default is p.empty for p in others)
    return needed or names != [p.name for p in parameters[: len(names)]]


@each_page
def test_every_signature_is_that_of_the_code(page: str) -> None:
    call = r"(?P<name>[A-Za-z]\w*(?:\.\w+)?)\((?P<printed>[^)\n]*)\)"
    path = r"(?P<path>[\w/]+\.py)"
    found = [*re.finditer(rf"^ *(?:\([abc]\) )?{call}\s{{2,}}{path}", PAGES[page], re.MULTILINE)]
    found += re.finditer(rf"`{path}: {call}`", PAGES[page])
    assert page != "docs/architecture.md" or len(found) > 30
    for match in found:
        module = importlib.import_module(match["path"].removesuffix(".py").replace("/", "."))
        function = reduce(getattr, match["name"].split("."), module)
        assert not misprinted(function, match["printed"]), f"{match['name']}{inspect.signature(function)}"


@each_page
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", file.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)", PAGES["README.md"]))
    assert {page for page in PAGES if page.startswith("docs/")} - linked == set()


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@each_page
def test_every_extra_that_is_installed_is_there(page: str) -> None:
    named = re.findall(r"(?:fedappeal|'\.)\[([a-z,]+)\]", PAGES[page])
    assert {extra for extras in named for extra in extras.split(",")} <= set(EXTRAS)


def test_the_readme_installs_what_its_first_run_needs() -> None:
    block = next(block for block in FENCE.findall(PAGES["README.md"]) if "pip install" in block)
    assert re.search(r"pip install '\.\[data\]'\n.*fedappeal simulate --task digits ", block), (
        "digits needs scikit-learn"
    )
    assert any("scikit-learn" in package for package in EXTRAS["data"])


# -- three readers, short pages ------------------------------------------------------------------------

SECTIONS: dict[str, str] = runpy.run_path(str(DOCS / "site" / "conf.py"))["SECTIONS"]
READERS = ("Researcher", "Operator", "Volunteer")
MOST_WORDS = 1200
"""Of a page's text, without code and tables."""


def test_the_navigation_has_every_page_once() -> None:
    named = [f"docs/{name}.md" for names in SECTIONS.values() for name in names.split() if "/" not in name]
    assert sorted(named) == sorted(page for page in PAGES if page.startswith("docs/"))


@pytest.mark.parametrize("reader", READERS)
def test_a_readers_path_has_at_most_four_pages_and_is_in_the_readme(reader: str) -> None:
    path = [f"docs/{name}.md" for name in SECTIONS[reader].split()]
    rows = PAGES["README.md"].partition(f"**{reader.lower()}**")[2].split("\n| a")[0].partition("\n\n")[0]
    assert 1 < len(path) <= 4
    assert re.findall(r"\]\((docs/\w+\.md)\)", rows) == path


def test_the_readme_is_short_and_shows_a_picture_and_a_result_before_its_first_table() -> None:
    lines = PAGES["README.md"].splitlines()
    assert len(lines) < 150
    before = "\n".join(lines[: next(n for n, line in enumerate(lines) if line.startswith("| "))])
    assert "![" in before
    assert re.search(r"\d+ % .*\(.*95 % interval: \d+ to \d+\)", before, re.DOTALL)


@each_page
def test_no_page_is_long(page: str) -> None:
    text = [line for line in FENCE.sub("", PAGES[page]).splitlines() if not line.startswith("|")]
    assert len(" ".join(text).split()) <= MOST_WORDS


# -- what is printed can be typed ----------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """The commands of fedappeal in a page's code blocks, without comments beside them."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"^(?:[$#] )?(?:[\w~./-]*/)?fedappeal ((?:client|\w+)\b.*)$", line)
            if found and not line.startswith("fedappeal: "):
                words = re.split(r"\s{3,}", found[1])[0]
                yield from (shlex.split(option) for option in alternatives(words))


def alternatives(words: str) -> Iterator[str]:
    """``client status | pause`` is two commands, and ``certs | key`` too."""
    first, *others = words.split(" | ")
    yield first
    before = first.split()[:-1]
    yield from (" ".join([*before, other]) for other in others)


@each_page
def test_every_printed_command_has_these_options(page: str) -> None:
    wrong = []
    for words in commands(PAGES[page]):
        command, left = typer.main.get_command(cli), words
        while left and isinstance(command, click.Group) and left[0] in command.commands:
            command, left = command.commands[left[0]], left[1:]
        try:
            given, others, _ = command.make_parser(click.Context(command, **command.context_settings)).parse_args(
                list(left)
            )
            if words[0] == "superlink":  # the others are Flower's
                Ports.of(others)
            if words[0] in ("local", "simulate", "submit") and "mine." not in " ".join(words):
                own = {name.replace("_", "-"): value for name, value in given.items()}
                run = {key: value for key, value in own.items() if key in GENERAL}
                _, others = chosen_trackers(given.get("track") or (), plugin_options(given.get("set") or ()))
                check_settings(RunConfig.parse(run | others))
        except (Exception, SystemExit) as error:
            wrong.append(f"{' '.join(words)}: {error}")
    assert wrong == []


def plugins() -> dict[str, type[Plugin]]:
    registries = (STRATEGIES, POLICIES, LOCAL_RULES, REQUIREMENTS)
    found: dict[str, type[Plugin]] = {}
    for registry in registries:
        found |= {name: registry.load(name) for name in registry.built_in if name not in found}  # type: ignore[attr-defined]
    return found | {name: TASKS.find(name) for name in TASKS.built_in}


def settings() -> set[str]:
    return {f"{name}.{key}" for name, plugin in plugins().items() for key in plugin.Settings.keys()}  # noqa: SIM118


ON_THE_WIRE = {"fedalign.epsilon-now", "fedalign.global-loss-now", "fedalign.priority", "scaffold.control-round"}
OF_THE_EXAMPLES = ("fedyogi.", "stubborn.", "sam.", "ambitious.", "slope.")


@each_page
def test_every_setting_of_a_plugin_is_there(page: str) -> None:
    names = "|".join([*plugins(), *(name.rstrip(".") for name in OF_THE_EXAMPLES)])
    named = set(re.findall(rf"(?<![\w./`])`?((?:{names})\.(?!md\b|py\b)[a-z][a-z0-9-]*)\b(?![.(/])", PAGES[page]))
    known = settings() | ON_THE_WIRE
    assert {key for key in named - known if not key.startswith(OF_THE_EXAMPLES)} == set()


def test_every_setting_of_a_strategy_is_on_its_page() -> None:
    text = "".join(PAGES.values())
    unwritten = {key for key in settings() if key.split(".")[0] in STRATEGIES.built_in and f"`{key}`" not in text}
    assert {key for key in unwritten if not key.startswith("maxfl-adagd.")} == set(), "maxfl-adagd's are ADA-GD's"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/protocol.md"])
def test_the_defaults_in_the_tables_are_those_of_the_code(page: str) -> None:
    known = {key: str(value) for key, value in RunConfig().as_config().items()}
    for name, plugin in plugins().items():
        defaults = {key: field.default for key, field in plugin.Settings.by_key().items()}
        known |= {f"{name}.{key}": str(value) for key, value in defaults.items() if value is not None}
    wrong = []
    for key, cells in re.findall(r"^\| `([a-z.-]+)` \|(.*)\|$", PAGES[page], re.MULTILINE):
        if key in known and not any(told(cell.strip(), known[key]) for cell in cells.split("|")):
            wrong.append((key, known[key], cells))
    assert wrong == []


def told(cell: str, value: str) -> bool:
    """Whether a cell gives a default, possibly with what it stands for."""
    first = re.match(r"`?([^\s`(:]+)`?", cell)
    if first is None:
        return value == ""
    try:
        return float(first[1]) == float(value)
    except ValueError:
        return first[1] in (value, value.lower()) or (value == "" and first[1] == "empty")


# -- tables read off the classes -----------------------------------------------------------------------


def test_the_tables_of_the_reference_are_those_of_the_code() -> None:
    page = PAGES["docs/reference.md"]
    assert renew_tables(page) == page, "python -m fedappeal.cli.reference writes them"
    assert {name for name in tables() if f"<!-- {name} -->" not in page} == set()


# -- words ---------------------------------------------------------------------------------------------


@each_page
def test_the_words_are_plain(page: str) -> None:
    found = [line for line in PAGES[page].splitlines() if OLD_WORDS.search(line)]
    assert found == []


def test_the_pages_are_all_of_docs() -> None:
    assert {DOCS / name for name in ("architecture.md", "protocol.md", "extending.md", "glossary.md")} <= set(pages())


def test_the_page_on_architecture_has_the_arrows_that_the_imports_are_checked_by() -> None:
    text = PAGES["docs/architecture.md"]
    block = text[text.index("Imports go one way") :].split("```\n")[1]
    rooms = [re.split(r"\s{2,}", row)[0] for row in block.splitlines()]
    rows = [tuple(name.replace("/", ".") for name in row.split(", ")) for row in rooms]
    assert tuple(reversed(rows)) == RANKS


# -- contracts -----------------------------------------------------------------------------------------


def contracts() -> dict[str, str]:
    """The dotted names of the table of contracts, with the arguments as printed."""
    text = PAGES["docs/architecture.md"]
    table = text[text.index("## Contracts") : text.index("Promises that a test keeps")]
    return dict(re.findall(r"`((?:strategies|client|fedappeal)(?:\.\w+)+)(?:\(([^`]*)\))?`", table))


def test_the_contracts_are_importable_with_these_arguments() -> None:
    assert len(contracts()) > 10
    for name, arguments in contracts().items():
        module, _, rest = name.partition(".")
        found: object = importlib.import_module(module)
        for part in rest.split("."):
            if not hasattr(found, part):
                assert isinstance(found, ModuleType), name
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)
        if inspect.isfunction(found) and arguments:
            assert not misprinted(found, arguments), f"{name}{inspect.signature(found)}"


def test_strategies_take_these_keywords() -> None:
    shared = {"clients_per_round": None, "min_clients": 1, "round_timeout": 60.0, "seed": 0}
    assert vars(shared_of(strategies.MaxFL(server_lr=1.0, stabilizer=1e-3, **shared))).items() >= shared.items()
    assert strategies.MaxFL().settings.model_dump(exclude_none=True) == {
        "server_lr": 1.0,
        "stabilizer": 1e-3,
        "step_sizes": "set",
    }
    for epsilon in (0.2, lambda number: 1 / number):
        strategies.FedALIGN(epsilon=epsilon, warmup_rounds=2)
    assert strategies.FedALIGN(epsilon=0.2, warmup_share=0.1).settings == strategies.FedALIGN().settings
    assert (
        strategies.AdaGD(step_size=0.1, precision=0.3, slack=2.0).settings
        == strategies.AdaGD(form="one-gradient").settings
    )
