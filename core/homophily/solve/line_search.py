"""The line search of the optimisers: a step along a direction that lowers the energy and flattens its slope."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from homophily.arrays import Floats

#: Nocedal and Wright's choice: any lower energy will do where the slope is flat enough.
SUFFICIENT_DECREASE = 1e-4
#: A bracket shrinks to a tenth at best and to nine tenths at worst: far more than a sound energy needs.
MAX_TRIALS = 20


@dataclass(frozen=True)
class Point:
    """One trial along the search direction."""

    step: float
    energy: float
    slope: float
    gradient: Floats


def line_search(
    trial: Callable[[float], Point], start: Point, first_step: float, curvature: float
) -> tuple[Point | None, int]:
    """A point with a lower energy and a flatter slope than ``start``, if there is one, and how many trials it took.

    Trials bracket the minimum along the direction; the next one comes from a cubic through the bracket's ends. A slope
    is flat enough where it is at most ``curvature`` times that at the start (strong Wolfe).
    """
    low = start
    high: Point | None = None
    step = first_step
    best: Point | None = None
    for count in range(1, MAX_TRIALS + 1):
        point = trial(step)
        energy = point.energy
        if not energy <= start.energy + SUFFICIENT_DECREASE * step * start.slope or energy >= low.energy:
            high = point
        else:
            best = point
            if abs(point.slope) <= -curvature * start.slope:
                return point, count
            if point.slope * ((high.step if high else math.inf) - low.step) >= 0:
                high = low
            low = point
        step = next_step(low, high, start.slope)
        if step in (low.step, high.step if high else math.inf):
            break  # the bracket is as narrow as floats go
    return (best if best and best.energy < start.energy else None), count


def next_step(low: Point, high: Point | None, start_slope: float) -> float:
    """The minimum of the cubic through both ends, kept inside the bracket; without a bracket, where the slope ends."""
    if high is None:
        flattening = 1.0 - low.slope / start_slope
        return low.step * (min(max(1.0 / flattening, 1.5), 10.0) if flattening > 0.0 else 10.0)
    width = high.step - low.step
    if math.isfinite(high.energy) and math.isfinite(high.slope):
        d1 = low.slope + high.slope - 3.0 * (high.energy - low.energy) / width
        root = d1 * d1 - low.slope * high.slope
        if root >= 0.0:
            d2 = math.copysign(math.sqrt(root), width)
            bottom = high.slope - low.slope + 2.0 * d2
            if bottom != 0.0:
                share = 1.0 - (high.slope + d2 - d1) / bottom
                return low.step + width * min(max(share, 0.1), 0.9)
    return low.step + 0.1 * width
