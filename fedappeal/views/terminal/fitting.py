"""What fits a terminal's line: texts broken between words, columns that are left out in a fixed order."""

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text

WORD = re.compile(r"(?:`[^`]*`|[^ ])+")
"""What stays on one line: a word, or a command between backquotes, which readers copy."""
ITEM = re.compile(r"[^ ,;][^,;]*[,;]?")
"""The same of a list: what stands between commas or semicolons."""
PHRASE = re.compile(r"[^ ;][^;]*;?")
"""The same of phrases between semicolons."""
_COLUMNS = re.compile(r".* {2,}(?=\S)")


def fit_lines(text: Text, width: int, unit: re.Pattern[str] = WORD, hanging: int | None = None) -> list[Text]:
    """Return a text as lines of at most a width; long words stay whole.

    Args:
        text: one line.
        width: in characters.
        unit: what is not broken, unless it is longer than a line.
        hanging: blanks before all lines but the first; None: as before the first.
    """
    plain = text.plain
    indent = len(plain) - len(plain.lstrip(" ")) if hanging is None else hanging
    cuts: list[int] = []
    start, room = 0, width
    for first, end in _units(plain, width - indent, unit):
        if cell_len(plain[start:end]) > room and plain[start:first].strip():
            cuts.append(first)
            start, room = first, width - indent
    head, *others = text.divide(cuts)
    lines = [head, *(Text(" " * indent).append_text(line) for line in others)]
    for line in lines:
        line.rstrip()
    return lines


def _units(plain: str, longest: int, unit: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the ends of a text's units, and of words in long ones."""
    for match in unit.finditer(plain):
        parts = [match] if cell_len(match[0]) <= longest else WORD.finditer(plain, match.start(), match.end())
        yield from (part.span() for part in parts)


def columns_that_fit(widths: Mapping[str, int], width: int, left_out: Sequence[str]) -> list[str]:
    """Return the columns of a row that fit a width, in their order.

    Args:
        widths: of each column with the blanks or borders around it.
        width: of the row.
        left_out: columns that may be left out, in the order in which they are; the others always stay.
    """
    shown = dict(widths)
    for name in left_out:
        if sum(shown.values()) <= width:
            break
        shown.pop(name, None)
    return list(shown)


def below_last_column(line: str, width: int) -> int:
    """Return the indent of a line's continuations: below its last cell.

    At 4 where that is narrow.
    """
    columns = _COLUMNS.match(line)
    hanging = columns.end() if columns else len(line) - len(line.lstrip(" "))
    return hanging if hanging <= width // 2 else 4
