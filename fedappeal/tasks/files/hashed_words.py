"""Text as a vector of fixed length: its words, hashed."""

import re
import zlib
from collections.abc import Sequence

import numpy as np

from fedappeal.tasks.arrays import Features

_WORD = re.compile(r"[a-z0-9]+(?:[+#.-]+[a-z0-9+#]*)*")


def words(text: str) -> list[str]:
    """Return a text's lower-case words of a-z and 0-9, in which ``+ # . -`` may follow: ``c++``, ``x.org``."""
    return _WORD.findall(text.lower())


def hashed(texts: Sequence[str], features: int) -> Features:
    """Return a row a text: entry ``CRC-32(word) mod features`` is 1 for each word, the others are 0.

    CRC-32 (that of zlib, of the word in ASCII) is the same on every machine and in every version. Words that share an
    entry are not told apart; a text without a word is all zeros.

    Args:
        texts: the texts.
        features: entries a row.
    """
    rows = np.zeros((len(texts), features), dtype=np.float32)
    for row, text in enumerate(texts):
        rows[row, [zlib.crc32(word.encode()) % features for word in words(text)]] = 1.0
    return rows
