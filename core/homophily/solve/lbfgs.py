"""L-BFGS: the optimiser of maps, whose links are stiff in directions that no preconditioner here knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from homophily.solve.line_search import Point
from homophily.solve.nonlinear_cg import NonlinearCG, State

#: Steps that the inverse Hessian is guessed from: Nocedal and Wright recommend 3 to 20.
MEMORY = 10
#: A pair whose ⟨s, y⟩ is a smaller share of ‖s‖‖y‖ holds nothing but rounding, and is left out.
LEAST_CURVATURE = 1e-10

Pairs = tuple[tuple[Any, Any, float], ...]


@dataclass(frozen=True)
class LBFGSState(State):
    """Where the optimiser stands, and the curvature that it has seen."""

    pairs: Pairs = ()
    """(step s, change of gradient y, 1/⟨s, y⟩), oldest first."""


@dataclass(frozen=True)
class LBFGS(NonlinearCG):
    """Limited-memory BFGS directions; the first guess of the inverse Hessian is a multiple of the identity."""

    state: ClassVar[type[State]] = LBFGSState
    precondition: None = None
    #: Nocedal and Wright's choice for quasi-Newton directions, whose full step is nearly always right.
    curvature: float = 0.9

    def _turn(self, state: Any, point: Point) -> dict[str, Any]:
        moved, turned = point.step * state.direction, point.gradient - state.gradient
        sizes = float(np.linalg.norm(moved) * np.linalg.norm(turned))
        pairs = remember(state.pairs, moved, turned, float(np.vdot(moved, turned)), sizes)
        return {"direction": two_loop(point.gradient, pairs, lambda a, b: float(np.vdot(a, b))), "pairs": pairs}

    def _first_step(self, state: State) -> float:
        """A full step: the direction has the length that the curvature asks for."""
        return super()._first_step(state) if state.iteration == 0 else 1.0


def remember(pairs: Pairs, moved: Any, turned: Any, curvature: float, sizes: float) -> Pairs:
    """The pairs with one more (s, y), if its curvature ⟨s, y⟩ counts beside the ``sizes`` ‖s‖‖y‖."""
    return (*pairs, (moved, turned, 1.0 / curvature))[-MEMORY:] if curvature > LEAST_CURVATURE * sizes else pairs


def two_loop(gradient: Any, pairs: Pairs, dot: Callable[[Any, Any], Any]) -> Any:
    """Minus the inverse Hessian times the gradient, by the two-loop recursion, over NumPy or CuPy."""
    q = gradient
    shares = []
    for moved, turned, inverse in reversed(pairs):
        share = inverse * dot(moved, q)
        q = q - share * turned
        shares.append(share)
    if pairs:
        _, turned, inverse = pairs[-1]
        q = q / (inverse * dot(turned, turned))
    for (moved, turned, inverse), share in zip(pairs, reversed(shares), strict=True):
        q = q + (share - inverse * dot(turned, q)) * moved
    return -q
