"""Orthogonal projection of a long vector away from a few rows, by Gram matrix.

With unit rows b_i, ``B = (b_1 ... b_k)``, Gram matrix ``G = B B^T = V L V^T`` and inner products ``c = B v``, the
part of v orthogonal to all rows is ``v - B^T V L^-1 V^T c`` over the eigenvalues that are not cut.

The rows are read block by block: one pass for G and c, one for the subtraction, which measures what it left, and
one more each time that was too much. A block is widened to float64 in a scratch space that stays in the processor's
cache, so that neither a float64 copy of the rows nor an orthonormal basis of their size is ever made.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]

_SCRATCH = 1 << 18
"""Float64 values a block holds over all rows: two megabytes (measured: 1 << 16 takes a quarter longer)."""
_FEW = 12
"""Up to so many rows, products row by row beat BLAS's matrix product (measured: 1.6 times at 10)."""
_CUT = 1e-14
"""Eigenvalues of the unit rows' Gram matrix under this share of the largest one are taken for rounding."""
_HIGHEST_CUT = 1e-13
"""But none above this is cut: a row has at most the root of a cut eigenvalue, 3e-7, outside of what is kept."""
_ENOUGH = 1e-9
"""A cosine with a row at which no further pass is needed; the promise is 1e-6."""
_MOST_PASSES = 4
_SMALLEST_BLOCK = 256


def norm(vector: Vector) -> float:
    """Euclidean norm, accumulated in float64: no overflow where squares leave float32, or float64, behind.

    Args:
        vector: shape ``(d,)``.
    """
    factor, total = _factor(vector), 0.0
    for start, stop in _blocks(vector.size, 0):
        part = _in_float64(vector[start:stop], factor)
        total += float(part @ part)
    return math.sqrt(total) / factor


def orthogonal_component(vector: Vector, basis: Vector | Sequence[Vector]) -> NDArray[np.float64]:
    """Return the part of a vector that is orthogonal to every row.

    Args:
        vector: shape ``(d,)``.
        basis: k rows, shape ``(k, d)`` or k vectors of shape ``(d,)``. They may be parallel or zero, of any length,
            and may span everything; rows given one by one are not copied together.

    Returns:
        float64, shape ``(d,)``, with ``|<result, row>| <= 1e-6 |result| |row|`` for every row. Zeros where nothing
        is left: a part smaller than the resolution of the inputs (1.2e-7 of the vector for float32) is rounding.

    Raises:
        ValueError: for other shapes, or values that are not finite.
    """
    rows = [vector, *basis]
    if any(row.ndim != 1 or row.shape != vector.shape for row in rows):
        raise ValueError(f"vector has shape {vector.shape}, basis has rows of shape {[r.shape for r in rows[1:]]}")
    factors = [_factor(row) for row in rows]
    gram = _gram(rows, factors)
    if not np.isfinite(gram).all():
        raise ValueError("vector or basis has values that are not finite")
    lengths = np.sqrt(np.diagonal(gram))
    nonzero = [i for i in range(1, len(rows)) if lengths[i] > 0]
    left = _in_float64(vector, factors[0], copy=True)
    if not nonzero or not lengths[0]:
        return left / factors[0]

    kept_rows, kept_factors, kept_lengths = (
        [rows[i] for i in nonzero],
        [factors[i] for i in nonzero],
        lengths[nonzero],
    )
    values, vectors = np.linalg.eigh(gram[np.ix_(nonzero, nonzero)] / np.outer(kept_lengths, kept_lengths), UPLO="L")
    spanned = values > min(_CUT * values[-1], _HIGHEST_CUT)
    values, vectors = values[spanned], vectors[:, spanned]

    resolution = max(float(np.finfo(row.dtype).eps) for row in rows)
    exact, noise = float(np.finfo(np.float64).eps), 0.0
    products = gram[nonzero, 0] / kept_lengths
    for _ in range(_MOST_PASSES):
        weights = vectors @ ((vectors.T @ products) / values)
        products, length = _subtract(left, kept_rows, kept_factors, kept_lengths, weights)
        # Each product that is subtracted brings rounding errors of its own size, which no later pass removes.
        noise += 4 * exact * float(np.abs(weights).sum())
        if length <= max(resolution * lengths[0], noise):
            return np.zeros_like(left)
        if np.abs(products).max() <= _ENOUGH * length:
            break
    return left / factors[0] if factors[0] != 1.0 else left


def _factor(vector: Vector) -> float:
    """Return a power of two that brings a vector's squares into float64's range."""
    if not vector.size or float(np.finfo(vector.dtype).max) < 1e150:
        return 1.0
    largest = max(float(vector.max()), -float(vector.min()))
    return math.ldexp(1.0, -max(-1000, min(1000, math.frexp(largest)[1]))) if math.isfinite(largest) else 1.0


def _in_float64(part: Vector, factor: float, *, copy: bool = False) -> NDArray[np.float64]:
    wide = part.astype(np.float64, copy=copy)
    return wide if factor == 1.0 else wide * factor


def _blocks(size: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut ``size`` columns of ``rows + 1`` vectors into blocks for the scratch space."""
    width = max(_SMALLEST_BLOCK, _SCRATCH // (rows + 1))
    for start in range(0, size, width):
        yield start, min(size, start + width)


def _gram(rows: Sequence[Vector], factors: Sequence[float]) -> NDArray[np.float64]:
    """Return the inner products of the rows, each times its factor.

    The lower triangle holds them, shape ``(k + 1, k + 1)``.
    """
    gram = np.zeros((len(rows), len(rows)))
    with np.errstate(invalid="ignore", over="ignore"):
        for block in _wide_blocks(rows, factors):
            if len(rows) > _FEW:
                gram += block @ block.T
            else:
                for i, row in enumerate(block):
                    gram[i, : i + 1] += block[: i + 1] @ row
    return gram


def _wide_blocks(rows: Sequence[Vector], factors: Sequence[float]) -> Iterator[NDArray[np.float64]]:
    """Yield the rows, scaled, block by block in float64; each overwrites the last."""
    size = rows[0].size
    scratch = np.empty((len(rows), max((b - a for a, b in _blocks(size, len(rows))), default=0)))
    for start, stop in _blocks(size, len(rows)):
        block = scratch[:, : stop - start]
        for out, row, factor in zip(block, rows, factors, strict=True):
            out[:] = row[start:stop]
            if factor != 1.0:
                out *= factor
        yield block


def _subtract(
    left: NDArray[np.float64],
    rows: Sequence[Vector],
    factors: Sequence[float],
    lengths: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], float]:
    """Subtract the weighted unit rows from ``left`` in place.

    Returns what is left's products with the unit rows, and its norm. One pass: a block that was subtracted is
    measured while it is still in the cache.
    """
    products, square, start = np.zeros(len(rows)), 0.0, 0
    weights = weights / lengths
    for block in _wide_blocks(rows, factors):
        part = left[start : start + block.shape[1]]
        part -= weights @ block
        products += block @ part
        square += float(part @ part)
        start += block.shape[1]
    return products / lengths, math.sqrt(square)
