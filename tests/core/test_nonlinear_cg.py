"""Nonlinear conjugate gradients: what they promise about energy, counts, callbacks and starts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from homophily.solve.line_search import MAX_TRIALS
from homophily.solve.nonlinear_cg import NonlinearCG

START = np.zeros((30, 1))


class Counted:
    """An objective that remembers its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, x):
        self.calls += 1
        return self.function(x)


def quadratic(condition=100.0, size=30):
    scales = np.geomspace(1.0, condition, size)[:, None]
    target = np.linspace(-1.0, 1.0, size)[:, None]
    return lambda x: (float(np.sum(scales * (x - target) ** 2)), 2 * scales * (x - target))


def rosenbrock(x):
    a, b = x[:, 0]
    energy = 100 * (b - a**2) ** 2 + (1 - a) ** 2
    return float(energy), np.array([[-400 * a * (b - a**2) - 2 * (1 - a)], [200 * (b - a**2)]])


def walled(x):
    """A logarithm with its pole at 0, infinite beyond."""
    if (x <= 0).any():
        return math.inf, np.full_like(x, np.nan)
    return float(np.sum(x - np.log(x))), 1 - 1 / x


def test_a_quadratic_is_minimised_to_the_tolerance():
    state = NonlinearCG(quadratic(), max_iter=500, tolerance=1e-8).run(START)
    assert state.finished
    assert state.gradient_norm <= 1e-8
    assert state.energy < 1e-12
    np.testing.assert_allclose(state.x[:, 0], np.linspace(-1.0, 1.0, 30), atol=1e-6)


def test_a_curved_valley_is_followed_to_its_end():
    state = NonlinearCG(rosenbrock, max_iter=500, tolerance=1e-8).run(np.array([[-1.2], [1.0]]))
    np.testing.assert_allclose(state.x, 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "start"),
    [(quadratic(1e4), START), (rosenbrock, np.array([[-1.2], [1.0]])), (walled, np.geomspace(1e-3, 9.0, 5)[:, None])],
)
def test_energy_never_rises(objective, start):
    energies = []
    NonlinearCG(objective, max_iter=100, tolerance=1e-10).run(start, lambda state: energies.append(state.energy))
    assert len(energies) > 3
    assert (np.diff(energies) < 0).all()


def test_infinite_energy_is_backed_off_from():
    state = NonlinearCG(walled, max_iter=100, tolerance=1e-8).run(np.full((5, 1), 1e-3))
    np.testing.assert_allclose(state.x, 1.0, atol=1e-6)


def test_a_kink_that_no_slope_leads_into_ends_the_search():
    # The slope is ±1 on either side: the bracket shrinks to nothing without ever holding a flat point.
    objective = Counted(lambda x: (float(np.abs(x - 1 / 3).sum()), np.sign(x - 1 / 3)))
    state = NonlinearCG(objective).run(np.zeros((1, 1)))
    assert abs(state.x[0, 0] - 1 / 3) < 1e-3
    assert state.n_evaluations == objective.calls


def test_a_wall_at_the_first_step_ends_the_search_there():
    # Downhill to 1 and infinite beyond: the bracket shrinks until both of its ends are 1.
    def cliff(x):
        return (-float(x[0, 0]), -np.ones((1, 1))) if x[0, 0] <= 1.0 else (math.inf, np.full((1, 1), np.nan))

    state = NonlinearCG(cliff).run(np.zeros((1, 1)))
    assert state.x[0, 0] == 1.0
    assert state.finished


def test_every_evaluation_is_counted():
    objective = Counted(quadratic(1e4))
    seen = []
    state = NonlinearCG(objective, max_iter=20, tolerance=0.0).run(
        START, lambda state: seen.append((state.n_evaluations, objective.calls))
    )
    assert state.n_evaluations == objective.calls
    assert all(told == made for told, made in seen)


def test_evaluations_of_a_failed_line_search_are_counted_too():
    # A gradient of the wrong sign: no step lowers the energy.
    objective = Counted(lambda x: (float(np.sum(x**2)), -2 * x))
    state = NonlinearCG(objective).run(np.ones((3, 1)))
    assert state.finished
    assert state.iteration == 0
    assert (state.x == 1.0).all()
    assert state.n_evaluations == objective.calls == 1 + MAX_TRIALS


def test_the_callback_sees_the_start_and_every_step():
    for tolerance in (0.0, 1e-4):
        states = []
        end = NonlinearCG(quadratic(), max_iter=40, tolerance=tolerance).run(START, states.append)
        assert [state.iteration for state in states] == list(range(end.iteration + 1))
        assert states[0].gradient_norm == 1.0
        assert states[-1].energy == end.energy
        assert states[-1].gradient_norm == end.gradient_norm


def test_raising_from_the_callback_cancels():
    objective = Counted(quadratic())

    def cancel(state):
        if state.iteration == 2:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        NonlinearCG(objective).run(START, cancel)
    assert objective.calls < 30


def test_running_is_stepping():
    optimiser = NonlinearCG(quadratic(), max_iter=7, tolerance=0.0)
    state = optimiser.init(START)
    for _ in range(7):
        state = optimiser.step(state)
    end = optimiser.run(START)
    assert (state.x == end.x).all()
    assert (state.energy, state.n_evaluations, state.iteration) == (end.energy, end.n_evaluations, 7)


def test_a_state_is_a_value():
    optimiser = NonlinearCG(quadratic(), tolerance=0.0)
    state = optimiser.step(optimiser.init(START))
    kept = state.x.copy(), state.gradient.copy(), state.direction.copy()
    first, again = optimiser.step(state), optimiser.step(state)
    assert (first.x == again.x).all()
    for array, before in zip((state.x, state.gradient, state.direction), kept, strict=True):
        assert (array == before).all()
    assert not START.any()


def test_no_step_is_taken_from_a_minimum():
    target = np.linspace(-1.0, 1.0, 30)[:, None]
    state = NonlinearCG(quadratic()).run(target)
    assert state.finished
    assert (state.iteration, state.n_evaluations, state.energy) == (0, 1, 0.0)
    assert (state.x == target).all()


def test_zero_steps_evaluate_the_start():
    state = NonlinearCG(quadratic(), max_iter=0).run(START)
    assert (state.iteration, state.n_evaluations) == (0, 1)
    assert state.energy == quadratic()(START)[0]


def test_a_start_of_infinite_energy_stays_where_it_is():
    state = NonlinearCG(walled).run(np.full((3, 1), -1.0))
    assert state.energy == math.inf
    assert (state.x == -1.0).all()


def test_the_inverse_hessian_makes_a_quadratic_short():
    scales = np.geomspace(1.0, 1e4, 30)[:, None]
    plain = NonlinearCG(quadratic(1e4), max_iter=500, tolerance=1e-6).run(START)
    preconditioned = NonlinearCG(
        quadratic(1e4), max_iter=500, tolerance=1e-6, precondition=lambda gradient: gradient / (2 * scales)
    ).run(START)
    assert preconditioned.iteration <= 3
    assert preconditioned.n_evaluations < plain.n_evaluations / 3
    assert preconditioned.energy <= 1e-10


def test_the_size_of_the_energy_does_not_matter():
    ends = []
    for unit in (1e-8, 1.0, 1e8):
        base = quadratic()
        end = NonlinearCG(lambda x, b=base, c=unit: tuple(c * part for part in b(x)), 500, 1e-6).run(START)
        assert end.gradient_norm <= 1e-6
        ends.append(end.iteration)
    assert max(ends) <= 2 * min(ends)


def test_several_columns_are_one_problem():
    scales = np.geomspace(1.0, 50.0, 20).reshape(10, 2)
    end = NonlinearCG(lambda x: (float(np.sum(scales * (x - 1) ** 2)), 2 * scales * (x - 1)), 200, 1e-8).run(
        np.zeros((10, 2))
    )
    np.testing.assert_allclose(end.x, 1.0, atol=1e-6)
