"""The small changes of a source file that tests should notice: mutants.

A comparison's, a sum's or a condition's operator is replaced, a number raised by one, True and False are exchanged, a
returned value is dropped, a statement that is a call or a raise is left out, an exception is not caught. What states
a fact for the type checker or the reader stays as it is: annotations, assertions, ``strict`` of zip, ``frozen`` and
``slots`` of dataclasses; so do texts.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
}
BOOLEAN: dict[type[ast.AST], tuple[str, str]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
STATEMENTS_OF_FACT = ("strict", "frozen", "slots")
# The opposite of a comparison with one of these is a mutant already.
OPPOSITES = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes from start to end are replaced. Lines count from 1."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    statement: tuple[int, int]  # the first and last line of the statement, of a compound one without its body
    imported: bool  # whether it runs when the module is imported, and not when a function is called

    def apply(self, source: bytes) -> bytes:
        """Return the file's source with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def text(self, source: bytes) -> str:
        """Return the changed line as it then reads, without indentation; it names the mutant in equivalent.toml."""
        return self.apply(source).decode().splitlines()[self.line - 1].strip()


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file, in the order of its tree."""
    return list(_Finder(path, source).mutants(ast.parse(source), (1, 1), imported=True))


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        self.lines = [0]  # the offset at which each line begins
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def mutants(self, node: ast.AST, statement: tuple[int, int], *, imported: bool) -> Iterator[Mutant]:
        """Yield the mutants of a node and of all below it."""
        if isinstance(node, ast.Assert | ast.JoinedStr) or _states_a_fact(node):
            return
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            statement = _header(node)
        for start, end, after in self.changes(node):
            before = self.source[start:end].decode()
            line = self.source.count(b"\n", 0, start) + 1
            yield Mutant(self.path, line, start, end, before, after, statement, imported)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for below in value if isinstance(value, list) else [value]:
                if isinstance(below, ast.AST):
                    yield from self.mutants(below, statement, imported=imported and not (function and name == "body"))

    def changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yield the changes of one node: start, end, and what stands there instead."""
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                    yield from self.operator(COMPARISONS, operator, left, right)
            case ast.BinOp():
                yield from self.operator(ARITHMETIC, node.op, node.left, node.right)
            case ast.AugAssign():
                yield from self.operator(ARITHMETIC, node.op, node.target, node.value)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self.operator(BOOLEAN, node.op, left, right)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as operator):
                yield self.start(node), self.start(node) + len("not" if isinstance(operator, ast.Not) else "-"), ""
            case ast.Constant(value=bool() as truth):
                yield self.whole(node, str(not truth))
            case ast.Constant(value=int() | float() as number):
                yield self.whole(node, repr(number + 1))
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield self.whole(value, "None")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
                yield self.whole(node, "pass")
            case ast.Break():
                yield self.whole(node, "continue")
            case ast.Continue():
                yield self.whole(node, "break")
            case ast.ExceptHandler(type=ast.expr() as caught):
                yield self.whole(caught, "()")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield from self.negation(test)
            case ast.comprehension():
                for condition in node.ifs:
                    yield from self.negation(condition)

    def operator(
        self, replacements: dict[type[ast.AST], tuple[str, str]], operator: ast.AST, left: ast.AST, right: ast.AST
    ) -> Iterator[tuple[int, int, str]]:
        """Yield the replacement of the operator between two operands, if there is one."""
        if type(operator) not in replacements:
            return
        before, after = replacements[type(operator)]
        begin = self.end(left)
        spelled = re.compile(re.escape(before).replace(r"\ ", r"\s+").encode())
        place = spelled.search(self.source, begin, self.start(right))
        assert place is not None, (self.path, before)
        yield place.start(), place.end(), after

    def negation(self, test: ast.expr) -> Iterator[tuple[int, int, str]]:
        """Yield the opposite of a condition, unless another mutant is that."""
        opposite = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
        if not opposite and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            yield self.whole(test, f"not ({self.source[self.start(test) : self.end(test)].decode()})")

    def whole(self, node: ast.AST, after: str) -> tuple[int, int, str]:
        """Return the change of the whole node."""
        return self.start(node), self.end(node), after

    def start(self, node: ast.AST) -> int:
        """Return the offset at which a node begins."""
        return self.lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Return the offset at which a node ends."""
        return self.lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]


def _header(node: ast.stmt | ast.ExceptHandler) -> tuple[int, int]:
    """Return the lines of a statement, of a compound one those before its body."""
    body = getattr(node, "body", None)
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return first, max(first, body[0].lineno - 1) if body else node.end_lineno or node.lineno


def _states_a_fact(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in STATEMENTS_OF_FACT
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
