"""The optimisers on the device: they wait for it once an evaluation, and nowhere else.

An evaluation's energy and every inner product that the line search decides by are fetched together. The next direction
is queued without being looked at; what the host wants to know of it comes along with the next evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import isfinite, sqrt
from typing import Any, Protocol

import numpy as np

from homophily.backend import CupyBackend
from homophily.gpu.matrix import dot
from homophily.lbfgs import MEMORY
from homophily.optimize import NonlinearCG, Point, State


class DeviceObjective(Protocol):
    """Energy (1,) and gradient on the device; NaN asks for ``adapt``."""

    backend: CupyBackend

    def __call__(self, F: Any) -> tuple[Any, Any]:
        """Energy and gradient at F."""

    def adapt(self, F: Any) -> bool:
        """Get ready for F; False where nothing helps."""


@dataclass(frozen=True)
class DevicePoint(Point):
    """A trial, with what else was fetched: ⟨g, g⟩, ⟨g, g before⟩, ⟨d, d⟩ and the slope ⟨g before, d⟩ at the start."""

    square: float = 0.0
    cross: float = 0.0
    length: float = 0.0
    start_slope: float = 0.0


@dataclass(frozen=True)
class DeviceState(State):
    """A state whose arrays (and ``descent``) are on the device."""

    square: float = 0.0
    """⟨gradient, gradient⟩"""
    largest: float = 0.0
    """The largest entry of the first direction."""
    pairs: tuple[tuple[Any, Any, float], ...] = ()
    """L-BFGS: (step s, change of gradient y, 1/⟨s, y⟩), oldest first."""


@dataclass(frozen=True)
class Shown:
    """What a callback sees of a state; its arrays are fetched only if they are asked for."""

    state: DeviceState
    backend: CupyBackend
    iteration: int
    n_evaluations: int

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.state, name)
        return self.backend.to_host(value) if isinstance(value, self.backend.xp.ndarray) else value


@dataclass(frozen=True)
class DeviceCG(NonlinearCG):
    """What :class:`~homophily.optimize.NonlinearCG` does, on the device."""

    objective: Any

    @property
    def backend(self) -> CupyBackend:
        """Where the arrays are."""
        backend: CupyBackend = self.objective.backend
        return backend

    def init(self, x: Any) -> DeviceState:
        """The state before the first step."""
        dots, xp = self._dots, self.backend.xp
        energy, gradient = self._evaluate(x)
        direction = -self._preconditioned(gradient)
        descent = -dots(gradient, direction)
        largest = xp.abs(direction).max().reshape(1)
        energy, square, falling, largest = self._fetch([energy, dots(gradient, gradient), descent, largest])
        if not isfinite(energy) and self.objective.adapt(x):
            return self.init(x)
        gradient_norm = sqrt(square) / (self.gradient_scale or sqrt(square) or 1.0)
        return DeviceState(
            x=x,
            energy=energy if isfinite(energy) else float("inf"),
            gradient=gradient,
            direction=direction,
            descent=descent,
            step_size=0.0,
            iteration=0,
            n_evaluations=1,
            gradient_norm=gradient_norm,
            finished=not falling > 0.0 or gradient_norm <= self.tolerance,
            square=square,
            largest=largest,
        )

    def step(self, state: State) -> DeviceState:
        """One line search and the next direction; the same state, finished, when nothing lower was found."""
        assert isinstance(state, DeviceState)
        first = self._evaluated(state, self._first_step(state))
        slope = first.start_slope
        if not slope < 0.0:
            return replace(state, n_evaluations=state.n_evaluations + 1, finished=True)
        known = {first.step: first}
        search = replace(self, objective=_Known(self.objective, known))
        point, trials = search._line_search(state, slope)
        evaluations = state.n_evaluations + trials
        if point is None:
            return replace(state, n_evaluations=evaluations, finished=True)
        assert isinstance(point, DevicePoint)
        direction, descent, pairs = self._turn(state, point)
        gradient_norm = state.gradient_norm * sqrt(point.square / state.square)
        return DeviceState(
            x=state.x + point.step * state.direction,
            energy=point.energy,
            gradient=point.gradient,
            direction=direction,
            descent=descent,
            step_size=point.step,
            iteration=state.iteration + 1,
            n_evaluations=evaluations,
            gradient_norm=gradient_norm,
            finished=gradient_norm <= self.tolerance,
            square=point.square,
            pairs=pairs,
        )

    def run(self, x: Any, callback: Callable[..., object] | None = None) -> State:
        """Step until finished or ``max_iter``; x and the state returned are on the host."""
        backend = self.backend

        def show(state: Any) -> None:
            if callback is not None:
                callback(Shown(state, backend, state.iteration, state.n_evaluations))

        state = super().run(backend.to_device(x), show)
        assert isinstance(state, DeviceState)
        kept = {field.name: getattr(state, field.name) for field in fields(State)}
        return State(**kept | {"x": backend.to_host(state.x), "gradient": None, "direction": None, "descent": np.nan})

    def _turn(self, state: DeviceState, point: DevicePoint) -> tuple[Any, Any, tuple[Any, ...]]:
        """The next direction and its descent, by Polak and Ribière, on the device."""
        xp = self.backend.xp
        preconditioned = self._preconditioned(point.gradient)
        descent = self._dots(point.gradient, preconditioned)
        beta = xp.maximum((descent - self._dots(state.gradient, preconditioned)) / state.descent, 0.0)
        # The new direction's slope is β⟨d, g⟩ − descent; where it does not fall, steepest descent starts again.
        beta = xp.where(beta * point.slope < descent, beta, 0.0)
        return beta * state.direction - preconditioned, descent, ()

    def _trial(self, state: State, step: float) -> Point:
        assert isinstance(state, DeviceState)
        return self._evaluated(state, step)

    def _evaluated(self, state: DeviceState, step: float) -> DevicePoint:
        if isinstance(self.objective, _Known) and step in self.objective.points:
            return self.objective.points[step]
        x, d = state.x + step * state.direction, state.direction
        energy, gradient = self._evaluate(x)
        asked = [
            energy,
            self._dots(gradient, d),
            self._dots(gradient, gradient),
            self._dots(gradient, state.gradient),
            self._dots(d, d),
            self._dots(state.gradient, d),
        ]
        values = self._fetch(asked)
        if not isfinite(values[0]):
            if self.objective.adapt(x):
                return self._evaluated(state, step)
            values[0] = float("inf")
        return DevicePoint(step, values[0], values[1], gradient, *values[2:])

    def _evaluate(self, x: Any) -> tuple[Any, Any]:
        energy, gradient = self.objective(x)
        return energy, gradient

    def _dots(self, a: Any, b: Any) -> Any:
        return dot(self.backend, a, b)

    def _fetch(self, scalars: list[Any]) -> list[float]:
        """Numbers from the device, all at once: the one place where the host waits."""
        return [float(value) for value in self.backend.to_host(self.backend.xp.concatenate(scalars))]

    def _first_step(self, state: State) -> float:
        if state.iteration == 0:
            assert isinstance(state, DeviceState)
            return min(1.0, 1.0 / state.largest)
        return state.step_size


class _Known:
    """An objective some of whose trials along the direction have been evaluated already."""

    def __init__(self, objective: DeviceObjective, points: dict[float, DevicePoint]) -> None:
        self.objective, self.points, self.backend = objective, points, objective.backend

    def __call__(self, F: Any) -> tuple[Any, Any]:
        return self.objective(F)

    def adapt(self, F: Any) -> bool:
        return self.objective.adapt(F)


@dataclass(frozen=True)
class DeviceLBFGS(DeviceCG):
    """What :class:`~homophily.lbfgs.LBFGS` does, on the device."""

    curvature: float = 0.9

    def _turn(self, state: DeviceState, point: DevicePoint) -> tuple[Any, Any, tuple[Any, ...]]:
        moved, turned = point.step * state.direction, point.gradient - state.gradient
        # ⟨s, y⟩, ‖s‖ and ‖y‖ from what is known already.
        curvature = point.step * (point.slope - point.start_slope)
        change = sqrt(max(0.0, point.square + state.square - 2.0 * point.cross))
        pairs = state.pairs
        if curvature > 1e-10 * point.step * sqrt(point.length) * change:
            pairs = (*pairs, (moved, turned, 1.0 / curvature))[-MEMORY:]
        direction = self._direction(point.gradient, pairs)
        return direction, -self._dots(direction, point.gradient), pairs

    def _direction(self, gradient: Any, pairs: tuple[tuple[Any, Any, float], ...]) -> Any:
        """Minus the inverse Hessian times the gradient, by the two-loop recursion."""
        q = gradient.copy()
        shares = []
        for moved, turned, inverse in reversed(pairs):
            share = inverse * self._dots(moved, q)
            q = q - share * turned
            shares.append(share)
        guess = self._preconditioned(q)
        if pairs:
            _, turned, inverse = pairs[-1]
            guess = guess / (inverse * self._dots(turned, self._preconditioned(turned)))
        for (moved, turned, inverse), share in zip(pairs, reversed(shares), strict=True):
            guess = guess + (share - inverse * self._dots(turned, guess)) * moved
        return -guess

    def _first_step(self, state: State) -> float:
        return super()._first_step(state) if state.iteration == 0 else 1.0
