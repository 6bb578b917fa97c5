"""A solve with landmarks that follow the values.

Landmarks of a low-rank engine are right for values near those they were placed at. When its error has grown too large,
the optimiser starts again where it is, with landmarks for the values it has reached; where no number of landmarks is
enough, with exact tiles if there are few enough points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from homophily.arrays import Floats
from homophily.relationship.choose import AFFORDABLE_TILES
from homophily.relationship.nystrom import NystromEngine
from homophily.solve.nonlinear_cg import Callback, State

Minimise = Callable[[Any, Floats, int, "float | None", "Callback | None"], State]
"""From an engine, values, a number of steps, the scale of the gradient and a callback to the optimiser's end."""


class _Moved(Exception):
    """The values have moved too far from the landmarks."""

    def __init__(self, state: State) -> None:
        self.state = state


def follow_values(
    engine: NystromEngine, minimise: Minimise, x: Floats, max_iter: int, callback: Callback | None
) -> tuple[State, Any]:
    """Minimise from ``x``; the end of it, with the steps of all starts counted, and the engine that was used last."""
    before: State | None = None
    scale: float | None = None
    relationships: Any = engine

    def counted(state: State) -> State:
        if before is None:
            return state
        evaluations = before.n_evaluations + state.n_evaluations
        return replace(state, iteration=before.iteration + state.iteration, n_evaluations=evaluations)

    def watch(state: State) -> None:
        nonlocal scale
        if scale is None:
            scale = float(np.linalg.norm(state.gradient)) / (state.gradient_norm or 1.0)
        # The first state of a new start was shown as the last of the one before.
        if callback is not None and (before is None or state.iteration):
            callback(counted(state))
        if state.iteration and not relationships.errors(state.x).are_allowed:
            raise _Moved(state)

    followed: Callback | None = watch
    while True:
        try:
            steps = max_iter - (0 if before is None else before.iteration)
            return counted(minimise(relationships, x, steps, scale, followed)), relationships
        except _Moved as moved:
            before, x = counted(moved.state), moved.state.x
        relationships = relationships.placed_at(x)
        if not relationships.errors(x).are_allowed:
            # More landmarks do not help.
            if len(x) <= AFFORDABLE_TILES:
                relationships = relationships.exact()
            followed = callback if callback is None else lambda state: callback(counted(state))
