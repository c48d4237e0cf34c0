"""A mutant changes what it says and nothing else, and everything that runs has its mutants."""

from textwrap import dedent

import pytest

from tests.mutants.operators import Mutant, mutants_of


def changed(source: str) -> list[str]:
    """Return the changed line of each mutant."""
    content = dedent(source).encode()
    return [mutant.text(content) for mutant in mutants_of("file.py", content)]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("a <  b", ["a <=  b"]),
        ("(a) not  in (b)", ["(a) in (b)"]),
        ("a is not b", ["a is b"]),
        ("a < b >= c", ["a <= b >= c", "a < b > c"]),
        ("a + b", ["a - b"]),
        ("a ** b", ["a * b"]),
        ("a -= b", ["a += b"]),
        ("a and b and c", ["a or b and c", "a and b or c"]),
        ("a = -b", ["a = b"]),
        ("a = not (b)", ["a =  (b)"]),
        ("a = 3", ["a = 4"]),
        ("a = 0.5", ["a = 1.5"]),
        ("a = False", ["a = True"]),
        ("a if b else c", ["a if not (b) else c"]),
        ("a if b == c else d", ["a if b != c else d"]),
        ("[a for a in b if c]", ["[a for a in b if not (c)]"]),
        ("call()", ["pass"]),
        ("raise a", ["pass"]),
        ("'ä' < b", ["'ä' <= b"]),
        ("a = 'text'", []),
        ("'''What it is.'''", []),
        ("f'{a + 1}'", []),
        ("a: Literal[1] | None = b", []),
        ("assert a < b", []),
        ("a = zip(b, c, strict=True)", []),
        ("a = sorted(b, reverse=True)", ["a = sorted(b, reverse=False)"]),
        ("if TYPE_CHECKING:\n    call()", []),
    ],
)
def test_mutants_of_one_line(source: str, lines: list[str]) -> None:
    assert changed(source) == lines


def test_statements_of_a_function() -> None:
    source = """
        def work(a: int = 1) -> None:
            while a:
                try:
                    break
                except (KeyError, ValueError):
                    continue
            return a
    """
    assert changed(source) == [
        "def work(a: int = 2) -> None:",
        "while not (a):",
        "continue",
        "except ():",
        "break",
        "return None",
    ]


def mutant_at(source: str, before: str) -> Mutant:
    return next(mutant for mutant in mutants_of("file.py", dedent(source).encode()) if mutant.before == before)


FUNCTION = """\
LIMIT = 4

def work(
    a=1,
    b=2,
):
    if (
        a >
        b
    ):
        b = a
    return lambda: 7
"""


def test_what_runs_when_the_module_is_imported() -> None:
    imported = {m.before for m in mutants_of("file.py", FUNCTION.encode()) if m.imported}
    assert imported == {"4", "1", "2"}


@pytest.mark.parametrize(
    ("before", "line", "statement"), [("4", 1, (1, 1)), ("2", 5, (3, 6)), (">", 8, (7, 10)), ("7", 12, (12, 12))]
)
def test_a_mutant_knows_the_lines_of_its_statement(before: str, line: int, statement: tuple[int, int]) -> None:
    mutant = mutant_at(FUNCTION, before)
    assert (mutant.line, mutant.statement) == (line, statement)
