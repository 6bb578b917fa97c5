"""L-BFGS: the optimiser of maps, whose links are stiff in directions that no preconditioner here knows.

It takes the line search and the shape ``init / step / run`` from :mod:`homophily.solve.nonlinear_cg`; its state also
remembers the last steps and how the gradient changed over them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from homophily.solve.line_search import Array
from homophily.solve.nonlinear_cg import NonlinearCG, State

MEMORY = 10


@dataclass(frozen=True)
class Remembering(State):
    """Where the optimiser stands, and the curvature that it has seen."""

    pairs: tuple[tuple[Array, Array, float], ...] = ()
    """(step s, change of gradient y, 1/⟨s, y⟩), oldest first."""


@dataclass(frozen=True)
class LBFGS(NonlinearCG):
    """Limited-memory BFGS directions; the first guess of the inverse Hessian is a multiple of the identity."""

    precondition: None = None
    curvature: float = 0.9

    def init(self, x: Array) -> Remembering:
        """The state before the first step."""
        state = super().init(x)
        return Remembering(**{field.name: getattr(state, field.name) for field in fields(State)})

    def step(self, state: State) -> Remembering:
        """One line search and the next direction; the same state, finished, when nothing lower was found."""
        assert isinstance(state, Remembering)
        slope = float(np.vdot(state.gradient, state.direction))
        point, trials = self._line_search(state, slope)
        evaluations = state.n_evaluations + trials
        if point is None:
            return replace(state, n_evaluations=evaluations, finished=True)
        moved, turned = point.step * state.direction, point.gradient - state.gradient
        curvature = float(np.vdot(moved, turned))
        pairs = state.pairs
        if curvature > 1e-10 * float(np.linalg.norm(moved) * np.linalg.norm(turned)):
            pairs = (*pairs, (moved, turned, 1.0 / curvature))[-MEMORY:]
        direction = self._direction(point.gradient, pairs)
        descent = -float(np.vdot(direction, point.gradient))
        gradient_norm = state.gradient_norm * float(np.linalg.norm(point.gradient) / np.linalg.norm(state.gradient))
        return Remembering(
            x=state.x + moved,
            energy=point.energy,
            gradient=point.gradient,
            direction=direction,
            descent=descent,
            step_size=point.step,
            iteration=state.iteration + 1,
            n_evaluations=evaluations,
            gradient_norm=gradient_norm,
            finished=gradient_norm <= self.tolerance or not descent > 0.0,
            pairs=pairs,
        )

    def _direction(self, gradient: Array, pairs: tuple[tuple[Array, Array, float], ...]) -> Array:
        """Minus the inverse Hessian times the gradient, by the two-loop recursion."""
        q = gradient.copy()
        shares = []
        for moved, turned, inverse in reversed(pairs):
            share = inverse * float(np.vdot(moved, q))
            q -= share * turned
            shares.append(share)
        guess = q
        if pairs:
            _, turned, inverse = pairs[-1]
            guess = q / (inverse * float(np.vdot(turned, turned)))
        for (moved, turned, inverse), share in zip(pairs, reversed(shares), strict=True):
            guess = guess + (share - inverse * float(np.vdot(turned, guess))) * moved
        return -guess

    def _first_step(self, state: State) -> float:
        """A full step: the direction has the length that the curvature asks for."""
        return super()._first_step(state) if state.iteration == 0 else 1.0
