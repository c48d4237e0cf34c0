"""The kinds of reasons for which a reply is left out or a client refused: few, whatever other parties write."""

import re

OTHER = "other"
_KINDS = {
    "no-answer": r"^no answer|^slow alone",
    "not-finite": r"is not a finite number|not finite",
    "data": r"data is refused|OwnDataError",
    "influence": r"\(influence-norm\)",
    "client-id": r"client-id|another key|max-clients",
    "malformed": r"^reply |is not allowed|^array |^model has arrays|cannot be (used|read)|its reply |its answer ",
    "client-error": r"^[A-Za-z_]*(Error|Exception|Refused)\b",
}
KINDS = (*_KINDS, OTHER)
"""All kinds, for labels."""


def kind_of(reason: object) -> str:
    """Return the kind of a reason; the first that fits, else ``other``."""
    text = str(reason)
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, text)), OTHER)
