"""Plug-ins: found by name, module:Name or entry point; settings under their own name; nothing runs unasked."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import Field

from fedappeal.core import plugins
from fedappeal.core.plugins import (
    ALL,
    PLUGIN_PATH,
    Allowed,
    Plugin,
    PluginSettings,
    Provenance,
    Registry,
    is_ours,
    parse_section,
)
from fedappeal.settings.config import ConfigError, Positive, Scalar
from tests.plugin_folder import write_distribution


class Shape(Plugin):
    """A shape."""


class RoundShape(Shape):
    """A round one.

    More is said of it here.
    """

    class Settings(PluginSettings):
        """Its settings."""

        outer_radius: Positive = Field(1.0, description="in metres")
        colour: str = Field("red", description="of its edge")
        sides: int | None = Field(None, description="not set: none")


SHAPES = Registry("shape", "fedappeal_tests.shapes", Shape, {"round-shape": f"{__name__}:RoundShape"})
CODE = f"""
import pathlib
from {__name__} import Shape

pathlib.Path("imported").touch()

class Square(Shape):
    class Nested(Shape):
        pass

class Stranger:
    pass

instance = Square()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package of shapes, which is the current one."""
    package = tmp_path / "own_shapes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plain.py").write_text(CODE)
    (package / "broken.py").write_text("raise RuntimeError('no\\nluck')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    plugins._distributions.cache_clear()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_shapes"]:
        del sys.modules[name]
    plugins._distributions.cache_clear()


def refused(name: str, allowed: Allowed = ALL) -> str:
    with pytest.raises(ConfigError) as error:
        SHAPES.load(name, allowed)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "name"), [("Mine", "mine"), ("FedAdam", "fed-adam"), ("SAM", "sam"), ("MyHTTPRule2", "my-http-rule2")]
)
def test_a_plug_in_is_called_by_its_class_in_kebab_case(cls: str, name: str) -> None:
    assert type(cls, (Shape,), {}).name == name  # type: ignore[attr-defined]
    assert type(cls, (Shape,), {"name": "other"}).name == "other"  # type: ignore[attr-defined]


def test_a_subclass_does_not_keep_its_bases_name() -> None:
    class Oval(RoundShape):
        """A long one."""

    assert (RoundShape.name, Oval.name) == ("round-shape", "oval")
    assert (RoundShape.summary_line(), Oval.summary_line()) == ("A round one.", "A long one.")


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"outer-radius": 0}, "round-shape.outer-radius = 0 is not allowed: input should be greater than 0"),
        ({"outer-radios": 1}, "unknown setting 'round-shape.outer-radios'; did you mean 'round-shape.outer-radius'?"),
        ({"zzz": 1}, "unknown setting 'round-shape.zzz'"),
        (
            {"outer-radius": "much"},
            "round-shape.outer-radius = 'much' is not allowed: input should be a valid number",
        ),
    ],
)
def test_a_setting_that_is_not_allowed_is_one_line_with_the_plug_ins_name(
    given: dict[str, Scalar], line: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse_section(RoundShape, given)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_settings_have_their_defaults_and_a_number_may_be_a_text() -> None:
    assert parse_section(RoundShape, {}).as_config() == {"outer-radius": 1.0, "colour": "red"}
    assert parse_section(RoundShape, {"colour": 7}).as_config()["colour"] == "7"
    assert parse_section(Shape, {}).as_config() == {}


# -- where they come from --------------------------------------------------------------------------------


def test_one_of_our_names() -> None:
    assert SHAPES.load("round-shape") is RoundShape
    assert SHAPES.names() == ["round-shape"]
    line = "shape = 'round-shap' is not allowed: round-shape, or package.module:Name of your own"
    assert refused("round-shap") == f"{line} (did you mean 'round-shape'?)"


def test_a_module_in_the_current_folder_or_in_the_one_that_the_environment_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    square = SHAPES.load("own_shapes.plain:Square")
    assert issubclass(square, Shape)
    assert SHAPES.load("own_shapes.plain:Square.Nested") is square.Nested  # type: ignore[attr-defined]
    assert not is_ours(square)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own_shapes_elsewhere.py").write_text(CODE)
    assert "ModuleNotFoundError" in refused("own_shapes_elsewhere:Square")
    monkeypatch.setenv(PLUGIN_PATH, str(elsewhere))
    assert SHAPES.load("own_shapes_elsewhere:Square").__name__ == "Square"
    del sys.modules["own_shapes_elsewhere"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("own_shapes.plain:Circle", "cannot be imported: AttributeError: module 'own_shapes.plain' has no attribute"),
        (
            "own_shapes.nothing:Square",
            "cannot be imported: ModuleNotFoundError: No module named 'own_shapes.nothing'",
        ),
        ("own_shapes.broken:Square", "cannot be imported: RuntimeError: no luck"),
        ("own_shapes.plain:", "is not allowed: write your own as package.module:Name"),
        (":Square", "is not allowed: write your own as package.module:Name"),
        ("own_shapes.plain:Stranger", f"is not allowed: it is no subclass of {__name__}.Shape"),
        ("own_shapes.plain:instance", f"is not allowed: it is no subclass of {__name__}.Shape"),
        ("os.path:join", f"is not allowed: it is no subclass of {__name__}.Shape"),
    ],
)
def test_what_cannot_be_a_plug_in_is_one_line(name: str, line: str) -> None:
    assert refused(name).startswith(f"shape = '{name}' {line}")


def test_an_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "[fedappeal_tests.shapes]\nsquare = own_shapes.plain:Square\nround-shape = own_shapes.plain:Square\n"
    write_distribution(folder / "site", "own-shapes", "1.5", "own_shapes", entries)
    monkeypatch.syspath_prepend(str(folder / "site"))
    assert SHAPES.names() == ["round-shape", "square"]
    assert SHAPES.load("square").__name__ == "Square"
    assert SHAPES.load("round-shape") is RoundShape, "no other distribution can take one of our names"
    assert refused("squares").endswith("(did you mean 'square'?)")
    found = Provenance.of("square", SHAPES.load("square"))
    source = hashlib.sha256(CODE.encode()).hexdigest()[:16]
    assert found == Provenance("square", "own-shapes", "1.5", source)
    assert str(found) == f"square (own-shapes 1.5, source {source})"


def test_without_a_distribution_the_source_alone_says_what_code_it_is() -> None:
    source = hashlib.sha256(CODE.encode()).hexdigest()[:16]
    found = Provenance.of("own_shapes.plain:Square", SHAPES.load("own_shapes.plain:Square"))
    assert str(found) == f"own_shapes.plain:Square (no distribution, source {source})"


# -- what an owner allows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allow", [[], [""], ["own"], ["own_shapes.plains"], ["own_shapes.plain.deeper"], ["*"], ["all"]]
)
def test_what_is_not_allowed_is_not_imported(allow: list[str]) -> None:
    assert refused("own_shapes.plain:Square", Allowed.of(allow)) == (
        "shape = 'own_shapes.plain:Square' is not allowed: this client's owner has not allowed the package "
        "'own_shapes' (--allow own_shapes)"
    )
    assert not Path("imported").exists()
    assert "own_shapes" not in sys.modules


@pytest.mark.parametrize("allow", [["own_shapes"], ["own_shapes.plain"], [" own_shapes ", "other"]])
def test_a_package_or_a_module_in_it_can_be_allowed(allow: list[str]) -> None:
    assert SHAPES.load("own_shapes.plain:Square", Allowed.of(allow)).__name__ == "Square"


def test_a_module_that_is_allowed_does_not_allow_its_package() -> None:
    assert "not allowed the package" in refused("own_shapes.broken:Square", Allowed.of(["own_shapes.plain"]))


def test_ours_are_always_allowed() -> None:
    ours = Registry("shape", "", Plugin, {"sgd": "client.training.sgd:SGD"})
    assert ours.load("sgd", Allowed.of([])).name == "sgd"
    assert ours.load("client.training.sgd:SGD", Allowed.of([])).name == "sgd"
    assert is_ours(ours.load("sgd"))


def test_an_entry_point_is_allowed_by_its_distribution(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "[fedappeal_tests.shapes]\nsquare = own_shapes.plain:Square\n"
    write_distribution(folder / "site", "shapes-of-my-own", "1.5", "own_shapes", entries)
    monkeypatch.syspath_prepend(str(folder / "site"))
    line = "shape = 'square' is not allowed: this client's owner has not allowed the package 'shapes-of-my-own'"
    assert refused("square", Allowed.of(["square"])).startswith(line)
    assert "own_shapes" not in sys.modules
    for allow in ("shapes-of-my-own", "own_shapes"):
        assert SHAPES.load("square", Allowed.of([allow])).__name__ == "Square"


@pytest.mark.parametrize("name", ["own_shapes.plain:pathlib.Path", f"{__name__}:plugins.Plugin", "os:path.join"])
def test_a_name_does_not_lead_through_one_module_into_another(name: str) -> None:
    step = name.partition(":")[2].partition(".")[0]
    assert refused(name) == (
        f"shape = '{name}' cannot be imported: TypeError: '{step}' is a module of its own: write it before the colon"
    )


@pytest.mark.parametrize(
    "name",
    [
        "client..sgd:SGD",
        "client.:SGD",
        ".client:SGD",
        "client:",
        ":SGD",
        ":",
        "client:SGD.",
        "client:.SGD",
        "client/sgd:SGD",
        "../client:SGD",
        " client:SGD",
        "client:SGD\nline",
        "\x00:x",
        "client.\x00:x",
        "a:b:c",
    ],
)
def test_what_is_no_name_is_not_looked_for(name: str) -> None:
    before = list(sys.path)
    for allowed in (ALL, Allowed.of([])):
        assert refused(name, allowed) == f"shape = {name!r} is not allowed: write your own as package.module:Name"
    assert sys.path == before


def test_a_name_in_our_packages_does_not_add_the_users_folder_to_the_search() -> None:
    before = list(sys.path)
    assert "cannot be imported" in refused("client.nothing:Square")
    assert "holds none that a run may name" in refused("client.nothing:Square", Allowed.of([]))
    assert sys.path == before


def test_a_distribution_that_is_called_like_our_package_is_not_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = "[fedappeal_tests.shapes]\nsquare = own_shapes.plain:Square\n"
    write_distribution(folder / "site", "client", "1.5", "own_shapes", entries)
    monkeypatch.syspath_prepend(str(folder / "site"))
    assert SHAPES.package("square") == "client"
    assert "not allowed the package 'client'" in refused("square", Allowed.of([]))


def test_a_package_that_is_in_the_current_folder_alone_needs_that_to_be_allowed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").touch()
    monkeypatch.delenv(plugins.PLUGIN_PATH, raising=False)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    allowed = plugins.Allowed.of
    assert allowed(["only_here"], by_call=True).missing("only_here") == [plugins.HERE]
    assert allowed(["only_here", plugins.HERE], by_call=True).missing("only_here") == []
    assert allowed(["only_here"]).missing("only_here") == []
