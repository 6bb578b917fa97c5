"""The optimisers on the device, which is rarely waited for.

Conjugate gradients decide their line search on the device (``search.cu``): the host queues several trials, then looks
at all of them together. L-BFGS decides on the host and waits once an evaluation, about once a step: all inner products
that it needs come along with the energy.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import ceil, inf, isfinite, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from homophily.device.backend import CupyBackend
from homophily.device.gpu.matrix import dot
from homophily.solve.lbfgs import LBFGS, LBFGSState, remember, two_loop
from homophily.solve.line_search import MAX_TRIALS, SUFFICIENT_DECREASE, Point, line_search
from homophily.solve.nonlinear_cg import NonlinearCG, State

#: Trials between two looks while the end is far: while the gradient is above this multiple of the tolerance.
TRIALS_A_LOOK = 8
FAR = 100.0
#: Trials before the first look where the end may be near: what the shortest searches take, two steps of two trials.
FIRST_TRIALS = 4

SEARCHING, ASKING, STOPPED, FINISHED = range(4)
"""What ``Search.status`` says, as in ``search.cu``."""


@dataclass(frozen=True)
class Shown:
    """What a callback sees of a state: numbers of its step, and arrays of the last step, fetched when asked for."""

    state: State
    backend: CupyBackend
    iteration: int
    n_evaluations: int

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.state, name)
        return self.backend.to_host(value) if isinstance(value, self.backend.xp.ndarray) else value


@dataclass(frozen=True)
class _OnDevice(NonlinearCG):
    """What both optimisers share."""

    objective: Any
    """Energy (1,) and gradient on the device; where the energy is NaN, its ``adapt(F)`` gets ready for F if it can."""

    @property
    def backend(self) -> CupyBackend:
        """Where the arrays are."""
        backend: CupyBackend = self.objective.backend
        return backend

    def _show(self, callback: Callable[..., object] | None, state: State) -> None:
        if callback is not None:
            callback(Shown(state, self.backend, state.iteration, state.n_evaluations))

    def _fetched(self, state: State) -> State:
        """The last state on the host, without what only further steps would need."""
        kept = {field.name: getattr(state, field.name) for field in fields(State)}
        x = self.backend.to_host(state.x)
        return State(**kept | {"x": x, "gradient": None, "direction": None, "descent": np.nan})

    def _dots(self, a: Any, b: Any) -> Any:
        return dot(self.backend, a, b)


Search = namedtuple(
    "Search",
    "status step accepted lower turning beta moved energy slope square descent norm iteration evaluations trials "
    "low_step low_energy low_slope low_square high_step high_energy high_slope",
)
"""A line search and where it began: the numbers of the struct in ``search.cu``, which says what each is."""


class Vectors(NamedTuple):
    """The arrays of a search, changed in place by the kernels."""

    x: Any
    gradient: Any
    direction: Any
    kept: Any
    """The gradient at the lowest trial."""


@dataclass(frozen=True)
class DeviceCG(_OnDevice):
    """What :class:`~homophily.solve.nonlinear_cg.NonlinearCG` does, trial by trial, with few looks from the host.

    ``precondition(gradient, go)`` may leave its work undone where the number ``go`` (1,) is 0; ``gradient_scale`` is a
    number (1,) on the device.
    """

    precondition: Any = None
    gradient_scale: Any = None

    def run(self, x: Any, callback: Callable[..., object] | None = None) -> State:
        """Step until finished or ``max_iter``; x and the state returned are on the host."""
        backend, shown, refused = self.backend, -1, False
        vectors, row = self._start(backend.to_device(x))
        trials = self.trials_ahead(1.0, 0, 0)
        while True:
            table = backend.to_host(self._queue(vectors, row, trials, refused))
            for search in (Search(*numbers) for numbers in table.tolist()):
                if search.iteration > shown and search.evaluations:
                    shown = int(search.iteration)
                    self._show(callback, self._state(vectors, search))
            if search.status == ASKING and not search.evaluations:
                if self.objective.adapt(vectors.x):
                    vectors, row = self._start(vectors.x)
                    continue
                search = search._replace(status=FINISHED, energy=np.inf, evaluations=1)
            if search.status in (STOPPED, FINISHED):
                return self._fetched(self._state(vectors, search))
            row = backend.to_device(search._replace(status=SEARCHING))
            refused = search.status == ASKING and not self.objective.adapt(self._trial_point(vectors, row))
            trials = self.trials_ahead(search.norm, int(search.iteration), int(search.evaluations))

    def trials_ahead(self, norm: float, iteration: int, evaluations: int) -> int:
        """How many trials to queue: an evaluation in vain costs more than a look, so near the end a step's worth."""
        if norm > FAR * self.tolerance:
            trials = TRIALS_A_LOOK
        else:
            trials = ceil((evaluations - 1) / iteration) if iteration else FIRST_TRIALS
        return min(trials, self.max_iter - iteration)

    def _start(self, x: Any) -> tuple[Vectors, Any]:
        """The arrays and the numbers before the first step."""
        xp, dots = self.backend.xp, self._dots
        energy, gradient = self.objective(x)
        direction = -self._preconditioned(gradient)
        square, descent = dots(gradient, gradient), -dots(gradient, direction)
        scale = xp.sqrt(square) if self.gradient_scale is None else self.gradient_scale
        row, largest = xp.empty(len(Search._fields)), xp.abs(direction).max().reshape(1)
        begun = energy, square, descent, largest, scale, row
        self.backend.kernels.launch("search_begin", 1, self.max_iter, self.tolerance, *begun)
        return Vectors(x, gradient, direction, xp.empty(x.shape)), row

    def _queue(self, vectors: Vectors, row: Any, trials: int, refused: bool) -> Any:
        """The table of the search's numbers, before and after each trial."""
        xp = self.backend.xp
        table = xp.empty((trials + 1, len(Search._fields)))
        table[0] = row
        for trial in range(trials):
            if refused and trial == 0:
                # The host knows already that nothing helps at this one.
                energy, gradient = xp.full(1, np.inf), vectors.gradient.copy()
            else:
                energy, gradient = self.objective(self._trial_point(vectors, table[trial]))
            self._decide(vectors, energy, gradient, table[trial], table[trial + 1])
        return table

    def _decide(self, vectors: Vectors, energy: Any, gradient: Any, before: Any, after: Any) -> None:
        """Queue what follows from a trial."""
        launch, dots, size = self.backend.kernels.launch, self._dots, gradient.size
        limits = MAX_TRIALS, self.max_iter, SUFFICIENT_DECREASE, self.curvature, self.tolerance
        found = energy, dots(gradient, vectors.direction), dots(gradient, gradient)
        launch("search_decide", 1, *limits, before, *found, after)
        launch("search_keep", size, size, after, gradient, vectors.kept)
        turning = Search._fields.index("turning")
        preconditioned = gradient
        if self.precondition:
            preconditioned = self.precondition(gradient, after[turning : turning + 1])
        descent, cross = dots(gradient, preconditioned), dots(vectors.gradient, preconditioned)
        launch("search_turn", 1, descent, cross, after)
        launch("search_move", size, size, after, gradient, preconditioned, *vectors[:3])

    def _trial_point(self, vectors: Vectors, row: Any) -> Any:
        point = self.backend.xp.empty(vectors.x.shape)
        arrays = row, vectors.x, vectors.direction, point
        self.backend.kernels.launch("search_trial", point.size, point.size, *arrays)
        return point

    def _state(self, vectors: Vectors, search: Search) -> State:
        return State(
            x=vectors.x,
            energy=search.energy,
            gradient=vectors.gradient,
            direction=vectors.direction,
            descent=search.descent,
            step_size=search.moved,
            iteration=int(search.iteration),
            n_evaluations=int(search.evaluations),
            gradient_norm=search.norm,
            finished=search.status == FINISHED,
        )


@dataclass(frozen=True)
class DevicePoint(Point):
    """A trial, with what else was fetched: ⟨g, g⟩, ⟨g, g before⟩, ⟨d, d⟩ and the slope ⟨g before, d⟩ at the start."""

    square: float = 0.0
    cross: float = 0.0
    length: float = 0.0
    start_slope: float = 0.0


@dataclass(frozen=True)
class DeviceState(LBFGSState):
    """A state of L-BFGS with its arrays on the device."""

    square: float = 0.0
    """⟨gradient, gradient⟩"""
    largest: float = 0.0
    """The largest entry of the first direction."""


@dataclass(frozen=True)
class DeviceLBFGS(LBFGS, _OnDevice):
    """What :class:`~homophily.solve.lbfgs.LBFGS` does, on the device."""

    objective: Any
    state: ClassVar[type[State]] = DeviceState

    def init(self, x: Any) -> State:
        """The state before the first step."""
        energy, gradient = self.objective(x)
        largest = self.backend.xp.abs(gradient).max().reshape(1)
        energy, square, largest = self._fetch([energy, self._dots(gradient, gradient), largest])
        if not isfinite(energy):
            if self.objective.adapt(x):
                return self.init(x)
            energy = inf
        return self._begin(x, energy, gradient, -gradient, square, sqrt(square), square=square, largest=largest)

    def run(self, x: Any, callback: Callable[..., object] | None = None) -> State:
        """Step until finished or ``max_iter``; x and the state returned are on the host."""
        return self._fetched(super().run(self.backend.to_device(x), lambda state: self._show(callback, state)))

    def _line_search(self, state: State) -> tuple[Point | None, int]:
        # The slope at the start comes along with the first trial.
        first = self._trial(state, self._first_step(state))
        if not first.start_slope < 0.0:
            return None, 1
        start = Point(0.0, state.energy, first.start_slope, state.gradient)

        def trial(step: float) -> DevicePoint:
            return first if step == first.step else self._trial(state, step)

        return line_search(trial, start, first.step, self.curvature)

    def _trial(self, state: State, step: float) -> DevicePoint:
        x, d = state.x + step * state.direction, state.direction
        energy, gradient = self.objective(x)
        others = (gradient, d), (gradient, gradient), (gradient, state.gradient), (d, d), (state.gradient, d)
        values = self._fetch([energy, *(self._dots(*pair) for pair in others)])
        if not isfinite(values[0]):
            if self.objective.adapt(x):
                return self._trial(state, step)
            values[0] = inf
        return DevicePoint(step, values[0], values[1], gradient, *values[2:])

    def _turn(self, state: Any, point: Any) -> dict[str, Any]:
        moved, turned = point.step * state.direction, point.gradient - state.gradient
        # ⟨s, y⟩, ‖s‖ and ‖y‖ from what is known already.
        curvature = point.step * (point.slope - point.start_slope)
        change = sqrt(max(0.0, point.square + state.square - 2.0 * point.cross))
        pairs = remember(state.pairs, moved, turned, curvature, point.step * sqrt(point.length) * change)
        return {"direction": two_loop(point.gradient, pairs, self._dots), "pairs": pairs, "square": point.square}

    def _norm_ratio(self, state: Any, point: Any) -> float:
        return sqrt(point.square / state.square)

    def _fetch(self, scalars: list[Any]) -> list[float]:
        """Numbers from the device, all at once: the one place where the host waits."""
        return [float(value) for value in self.backend.to_host(self.backend.xp.concatenate(scalars))]

    def _first_step(self, state: Any) -> float:
        return min(1.0, 1.0 / state.largest) if state.iteration == 0 else 1.0
