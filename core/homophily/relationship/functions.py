"""The relationship functions: how related two points are, by the distance r of their values.

A function enters the engines through :func:`relate`, :func:`slope` and :data:`FARTHEST` alone. Another radial function
needs its value ``k(x)`` for ``x = r²/σ²``, its slope ``dk/dx`` as a function of k, and the x beyond which it is 0.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import numpy as np
from numba import njit

Relationship = Literal["gaussian", "cauchy"]
RELATIONSHIPS: tuple[Relationship, ...] = ("gaussian", "cauchy")
# exp(−45) ≈ 3e-20: beside the 1 on K's diagonal, anything smaller is lost in rounding. 1/(1 + x) never is.
FARTHEST: dict[Relationship, float] = {"gaussian": 45.0, "cauchy": inf}

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
def relate(x, cauchy, size):  # type: ignore[no-untyped-def]
    """Turn the first ``size`` x = r²/σ² into relationships: exp(−x), or 1/(1 + x)."""
    if cauchy:
        for a in range(size):
            x[a] = 1.0 / (1.0 + x[a])
    else:
        for a in range(size):
            x[a] = exp_negative(x[a])


@njit(cache=True, nogil=True, inline="always")
def slope(k, cauchy):  # type: ignore[no-untyped-def]
    """Derivative of the relationship function by x, where it is k."""
    return -k * k if cauchy else -k
