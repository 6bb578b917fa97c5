"""Nonlinear conjugate gradients with an optional preconditioner, as ``init / step / run``.

The state is a value: it counts iterations and evaluations, so that progress, cancelling (raise from the callback) and
warm starts need nothing else. The energy never rises: a step is taken only if the line search found a lower one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from homophily.arrays import Floats
from homophily.solve.line_search import Point, line_search

Objective = Callable[[Floats], tuple[float, Floats]]
"""F -> (energy, gradient); an infinite energy marks an F that is out of bounds."""

#: Between what Nocedal and Wright take for conjugate gradients (0.1) and for quasi-Newton steps (0.9).
CURVATURE = 0.3


@dataclass(frozen=True)
class State:
    """Where the optimiser stands."""

    x: Floats
    energy: float
    gradient: Floats
    direction: Floats
    descent: float
    """⟨gradient, preconditioned gradient⟩: the squared gradient norm in the preconditioner's metric."""
    step_size: float
    iteration: int
    n_evaluations: int
    gradient_norm: float
    """‖gradient‖ relative to the optimiser's scale, by default its norm at the start."""
    finished: bool = False
    """The gradient is small enough, or no step lowers the energy any more."""


Callback = Callable[[State], object]


@dataclass(frozen=True)
class NonlinearCG:
    """Polak–Ribière+ directions and a strong Wolfe line search."""

    state: ClassVar[type[State]] = State
    objective: Objective
    max_iter: int = 50
    tolerance: float = 1e-6
    precondition: Callable[[Floats], Floats] | None = None
    gradient_scale: float | None = None
    """The gradient norm that ``tolerance`` is a share of; None takes that at the start."""
    curvature: float = CURVATURE
    """How flat the slope must be where a line search may stop, as a share of the slope at its start."""

    def init(self, x: Floats) -> State:
        """The state before the first step."""
        energy, gradient = self.objective(x)
        preconditioned = self._preconditioned(gradient)
        descent = float(np.vdot(gradient, preconditioned))
        return self._begin(x, energy, gradient, -preconditioned, descent, float(np.linalg.norm(gradient)))

    def _begin(
        self, x: Floats, energy: float, gradient: Floats, direction: Floats, descent: float, norm: float, **more: Any
    ) -> State:
        gradient_norm = norm / (self.gradient_scale or norm or 1.0)
        return self.state(
            x=x,
            energy=energy,
            gradient=gradient,
            direction=direction,
            descent=descent,
            step_size=0.0,
            iteration=0,
            n_evaluations=1,
            gradient_norm=gradient_norm,
            finished=not descent > 0.0 or gradient_norm <= self.tolerance,
            **more,
        )

    def step(self, state: State) -> State:
        """One line search and the next direction; the same state, finished, when nothing lower was found."""
        point, trials = self._line_search(state)
        evaluations = state.n_evaluations + trials
        if point is None:
            return replace(state, n_evaluations=evaluations, finished=True)
        gradient_norm = state.gradient_norm * self._norm_ratio(state, point)
        return replace(
            state,
            x=state.x + point.step * state.direction,
            energy=point.energy,
            gradient=point.gradient,
            step_size=point.step,
            iteration=state.iteration + 1,
            n_evaluations=evaluations,
            gradient_norm=gradient_norm,
            finished=gradient_norm <= self.tolerance,
            **self._turn(state, point),
        )

    def _turn(self, state: State, point: Point) -> dict[str, Any]:
        """The next direction, and what else of the state goes with it."""
        preconditioned = self._preconditioned(point.gradient)
        descent = float(np.vdot(point.gradient, preconditioned))
        beta = max(0.0, (descent - float(np.vdot(state.gradient, preconditioned))) / state.descent)
        direction = beta * state.direction - preconditioned
        if np.vdot(direction, point.gradient) >= 0.0:
            direction = -preconditioned
        return {"direction": direction, "descent": descent}

    def run(self, x: Floats, callback: Callback | None = None) -> State:
        """Step until finished or ``max_iter``, showing every state to the callback."""
        state = self.init(x)
        if callback:
            callback(state)
        while not state.finished and state.iteration < self.max_iter:
            before, state = state, self.step(state)
            if callback and state.iteration > before.iteration:
                callback(state)
        return state

    def _preconditioned(self, gradient: Floats) -> Floats:
        return self.precondition(gradient) if self.precondition else gradient

    def _norm_ratio(self, state: State, point: Point) -> float:
        return float(np.linalg.norm(point.gradient) / np.linalg.norm(state.gradient))

    def _line_search(self, state: State) -> tuple[Point | None, int]:
        """A lower point along the direction, and how many evaluations it took."""
        slope = float(np.vdot(state.gradient, state.direction))
        if not slope < 0.0:
            return None, 0
        start = Point(0.0, state.energy, slope, state.gradient)
        return line_search(lambda step: self._trial(state, step), start, self._first_step(state), self.curvature)

    def _trial(self, state: State, step: float) -> Point:
        energy, gradient = self.objective(state.x + step * state.direction)
        return Point(step, energy, float(np.vdot(gradient, state.direction)), gradient)

    def _first_step(self, state: State) -> float:
        """The step that was right last time; before any, a full one that moves no value by more than 1."""
        return state.step_size if state.iteration else min(1.0, 1.0 / float(np.abs(state.direction).max()))
