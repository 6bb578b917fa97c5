"""The relationship functions: how related two points are, by the distance r of their values.

Each is one :class:`Relationship` in :data:`RELATIONSHIPS`. Another radial function needs an object here, a branch in
:func:`relate` and in :func:`slope`, and a line in ``device/kernels/common.cuh``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numba import njit


@dataclass(frozen=True)
class Relationship:
    """A relationship k(x) of x = r²/σ², with k(0) = 1."""

    name: str
    """What users call it."""
    id: int
    """Its number in the compiled kernels, both numba's and CUDA's."""
    value: Callable[[Any, Any], Any]
    """k(x), from an array module (NumPy or CuPy) and an array."""
    minus_log: Callable[[Any, Any], tuple[Any, Any]]
    """−log k(x) and its derivative, which stay finite where k underflows."""
    farthest: float = inf
    """The x beyond which k counts as 0."""
    has_gauss_sums: bool = False
    """k(‖a − b‖) k(‖a − c‖) is a Gaussian around (b + c)/2, so that tr(KᵀGK) is a sum of Gauss sums over edges."""

    def slope(self, k: Any) -> Any:
        """Derivative dk/dx where the relationship is k, a number or an array."""
        return _slope_of(k, self.id)


GAUSSIAN = Relationship(
    "gaussian",
    0,
    lambda xp, x: xp.exp(-x),
    lambda xp, x: (x, xp.ones(x.shape)),
    # exp(−45) ≈ 3e-20: beside the 1 on K's diagonal, anything smaller is lost in rounding.
    farthest=45.0,
    has_gauss_sums=True,
)
CAUCHY = Relationship("cauchy", 1, lambda _, x: 1.0 / (1.0 + x), lambda xp, x: (xp.log1p(x), 1.0 / (1.0 + x)))
RELATIONSHIPS = {function.name: function for function in (GAUSSIAN, CAUCHY)}

_SHIFT = 6755399441055744.0  # 1.5·2^52: adding it rounds to an integer, held in the low bits
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10


# No "reassoc" here: it would cancel _SHIFT.
@njit(cache=True, nogil=True, fastmath={"contract"})
def exp_negative(x):  # type: ignore[no-untyped-def]
    """``exp(−x)`` for x ≥ 0 in plain arithmetic, so that loops over it vectorise (five times the speed of libm)."""
    y = max(-x, -708.0)  # below, the result would leave the normal numbers
    # exp(y) = 2^k exp(r) with |r| ≤ ln2 / 2, where twelve terms of the series reach the last bit.
    shifted = y * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = (y - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1 / 39916800 + r * (1 / 479001600)
    p = 1 / 40320 + r * (1 / 362880 + r * (1 / 3628800 + r * p))
    p = 1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (1 / 5040 + r * p)))
    p = 1.0 + r * (1.0 + r * (0.5 + r * (1 / 6 + r * p)))
    bits = np.float64(shifted).view(np.int64)
    return p * np.int64((bits + np.int64(1023)) << np.int64(52)).view(np.float64)


@njit(cache=True, nogil=True, fastmath={"contract"})
def relate(x, function, size):  # type: ignore[no-untyped-def]
    """Turn the first ``size`` x = r²/σ² into relationships by the function of that id."""
    # A loop for each function: a branch within one would keep it from being vectorised.
    if function == 1:
        for a in range(size):
            x[a] = 1.0 / (1.0 + x[a])
    else:
        for a in range(size):
            x[a] = exp_negative(x[a])


def _slope_of(k: Any, function: int) -> Any:
    """Derivative dk/dx of the function of that id, where it is k."""
    return -k * k if function == 1 else -k


slope = njit(cache=True, nogil=True, inline="always")(_slope_of)
