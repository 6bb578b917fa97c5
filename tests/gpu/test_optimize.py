"""Conjugate gradients whose line search the device decides, beside those of the CPU: the same trials, fewer looks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.device.backend import get_backend
from homophily.device.gpu import optimize
from homophily.device.gpu.energy import DevicePreconditioner
from homophily.device.gpu.matrix import DeviceMatrix
from homophily.device.gpu.optimize import DeviceCG, Search
from homophily.device.kernels import source
from homophily.solve.label_energy import PolynomialPreconditioner
from homophily.solve.line_search import MAX_TRIALS
from homophily.solve.nonlinear_cg import NonlinearCG

from ..core.oracle import knn_weights, laplacian
from .cases import SEARCH
from .standin import counters
from .test_classify import PlainERR, few_labels, three_classes


def bowl(xp, x):
    """A quadratic with curvatures from 1 to 200."""
    weights = xp.arange(x.size, dtype=np.float64).reshape(x.shape) * 20.0 + 1.0
    return 0.5 * (weights * (x - 1.0) * (x - 1.0)).sum(), weights * (x - 1.0)


def valley(xp, x):
    """Not convex, and in need of long line searches."""
    energy = (x * x * x * x).sum() - 3.0 * (x * x).sum() + xp.cos(5.0 * x).sum()
    return energy, 4.0 * x * x * x - 6.0 * x - 5.0 * xp.sin(5.0 * x)


def kink(xp, x):
    """No slope is ever flat: brackets shrink until trials or floats run out."""
    right = xp.where(x > 0.3, 1.0, -1.0)
    return (xp.abs(x - 0.3)).sum(), right * xp.ones(x.shape)


def uphill(xp, x):  # noqa: ARG001
    """The gradient points the wrong way: no step lowers the energy."""
    return -1.0 * (x * x).sum(), 2.0 * x


class OnDevice:
    """An objective on the device that is out of its bounds, and says so, until it has adapted."""

    def __init__(self, backend, energy, bound=np.inf, widest=np.inf):
        self.backend, self.energy, self.bound, self.widest = backend, energy, bound, widest
        self.calls, self.adapted = 0, 0

    def __call__(self, x):
        xp = self.backend.xp
        self.calls += 1
        energy, gradient = self.energy(xp, x)
        inside = (xp.abs(x).max() <= self.bound).reshape(1)
        return xp.where(inside, energy.reshape(1), np.nan), gradient

    def adapt(self, x):
        self.adapted += 1
        reach = float(np.abs(self.backend.to_host(x)).max())
        if reach > self.widest:
            return False
        self.bound = reach
        return True


def on_host(energy, widest=np.inf):
    def objective(x):
        value, gradient = energy(np, x)
        return float(value) if np.abs(x).max() <= widest else np.inf, gradient

    return objective


def start(rows=10, columns=1):
    return np.random.default_rng(0).normal(size=(rows, columns)) + 0.2


def traced(optimiser, x):
    """The last state, and what callbacks saw."""
    seen = []
    state = optimiser.run(
        x, lambda s: seen.append((s.iteration, s.n_evaluations, s.energy, s.gradient_norm, s.step_size))
    )
    return state, np.array(seen)


def assert_same_search(host, device, rtol=1e-9):
    (expected, steps), (found, shown) = host, device
    assert (found.iteration, found.n_evaluations) == (expected.iteration, expected.n_evaluations)
    assert found.finished == expected.finished
    np.testing.assert_array_equal(shown[:, :2], steps[:, :2])
    np.testing.assert_allclose(shown[:, 2:], steps[:, 2:], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.x, expected.x, rtol=rtol, atol=rtol)
    assert found.energy == pytest.approx(expected.energy, rel=rtol)


@pytest.mark.parametrize("energy", [bowl, valley, kink, uphill])
@pytest.mark.parametrize("max_iter", [0, 1, 2, 3, 7, 30])
def test_every_trial_and_step_is_that_of_the_cpu(device, energy, max_iter):
    host = traced(NonlinearCG(on_host(energy), max_iter, 1e-6), start())
    on_device = traced(DeviceCG(OnDevice(device, energy), max_iter, 1e-6), start())
    # What the last digits of a slope decide comes after the first steps where floats run out.
    assert_same_search(host, on_device, rtol=1e-6)
    if energy in (bowl, valley) and max_iter < 8:
        assert on_device[0].iteration == max_iter


def test_a_search_without_a_flat_slope_takes_the_lowest_trial(device):
    state, seen = traced(DeviceCG(OnDevice(device, kink), 3, 0.0), start(1))
    assert np.diff(seen[:, 1]).max() > 5
    assert (np.diff(seen[:, 2]) < 0).all()
    assert state.energy == pytest.approx(abs(float(state.x[0, 0]) - 0.3), abs=1e-12)


def test_where_nothing_is_lower_the_search_ends_after_as_many_trials_as_on_the_cpu(device):
    state, seen = traced(DeviceCG(OnDevice(device, uphill), 9, 0.0), start())
    assert (state.iteration, state.n_evaluations, state.finished) == (0, 1 + MAX_TRIALS, True)
    assert len(seen) == 1
    np.testing.assert_array_equal(state.x, start())


def test_a_small_gradient_at_the_start_is_the_end(device):
    objective = OnDevice(device, bowl)
    state, seen = traced(DeviceCG(objective, 9, 1e-6), np.ones((10, 1)))
    assert (state.iteration, state.n_evaluations, state.finished, len(seen)) == (0, 1, True, 1)


@pytest.mark.parametrize("shape", [(10, 1), (150, 3)])
def test_a_preconditioner_and_a_scale(device, shape):
    weights = 1.0 / (np.arange(np.prod(shape)).reshape(shape) * 20.0 + 1.0) + 0.01
    on_device = device.to_device(weights)
    host = NonlinearCG(on_host(bowl), 12, 1e-9, lambda g: weights * g, 7.0)
    scale = device.to_device(np.array([7.0]))
    found = DeviceCG(OnDevice(device, bowl), 12, 1e-9, lambda g, go=None: on_device * g, scale)  # noqa: ARG005
    assert_same_search(traced(host, start(*shape)), traced(found, start(*shape)))


@pytest.mark.parametrize("energy", [bowl, valley])
def test_an_objective_that_asks_is_adapted_and_the_same_trial_made_again(device, energy):
    objective = OnDevice(device, energy, bound=np.abs(start()).max() / 2)
    host = traced(NonlinearCG(on_host(energy), 9, 0.0), start())
    assert_same_search(host, traced(DeviceCG(objective, 9, 0.0), start()), rtol=1e-6)
    assert objective.adapted >= 1


def test_a_trial_that_nothing_helps_is_one_of_infinite_energy(device):
    def steep(xp, x):
        return (xp.exp(-4.0 * x)).sum() + 0.01 * x.sum(), -4.0 * xp.exp(-4.0 * x) + 0.01

    x = np.zeros((4, 1))
    objective = OnDevice(device, steep, bound=0.0, widest=0.9)
    host = traced(NonlinearCG(on_host(steep, 0.9), 9, 0.0), x)
    assert_same_search(host, traced(DeviceCG(objective, 9, 0.0), x), rtol=1e-6)
    assert objective.bound <= 0.9 < float(np.abs(host[0].x).max()) + 0.5


def test_a_start_that_nothing_helps_ends_with_an_infinite_energy(device):
    state, _ = traced(DeviceCG(OnDevice(device, bowl, bound=0.0, widest=0.0), 9, 0.0), start())
    assert (state.energy, state.iteration, state.n_evaluations, state.finished) == (np.inf, 0, 1, True)


@pytest.mark.parametrize("energy", [bowl, valley, kink, uphill])
def test_how_many_trials_are_queued_changes_no_bit(device, energy, monkeypatch):
    results = []
    for trials in (1, 3, 50):
        monkeypatch.setattr(DeviceCG, "trials_ahead", lambda *_, trials=trials: trials)
        state, seen = traced(DeviceCG(OnDevice(device, energy), 9, 1e-3), start())
        results.append((state.x.tobytes(), seen.tobytes(), state.n_evaluations, state.finished))
    assert len(set(results)) == 1


def test_callbacks_see_every_step_in_order_and_the_last_arrays(device):
    seen = []
    state = DeviceCG(OnDevice(device, bowl), 10, 0.0).run(start(), seen.append)
    assert [each.iteration for each in seen] == list(range(11))
    assert (np.diff([each.energy for each in seen]) < 0).all()
    assert (np.diff([each.n_evaluations for each in seen]) > 0).all()
    np.testing.assert_array_equal(seen[-1].x, state.x)


def test_a_callback_cancels_by_an_exception(device):
    class Cancelled(Exception):
        pass

    def cancel(state):
        if state.iteration == 2:
            raise Cancelled

    objective = OnDevice(device, bowl)
    with pytest.raises(Cancelled):
        DeviceCG(objective, 1000, 0.0).run(start(), cancel)
    assert objective.calls <= 1 + 2 * optimize.TRIALS_A_LOOK


@pytest.mark.usefixtures("standin_cupy")
@pytest.mark.parametrize(("data", "power"), [(few_labels, 1), (three_classes, 2)])
@pytest.mark.parametrize(
    ("kind", "parameters"), [(ERRClassifier, {"sharpen": False}), (PlainERR, {"tol": 0.0, "max_iter": 20})]
)
@pytest.mark.parametrize("warm", [False, True])
def test_the_device_is_waited_for_at_most_once_a_step(data, power, kind, parameters, warm, monkeypatch):
    X, y = data()
    graph = KNNGraph().fit(X)
    init = IRRClassifier(power=power).fit(graph, y).solution_
    before, calls = [], []
    descend = DeviceCG.run
    monkeypatch.setattr(DeviceCG, "run", lambda self, *how: (before.append(counters.waits), descend(self, *how))[1])
    decide = DeviceCG._decide
    monkeypatch.setattr(DeviceCG, "_decide", lambda self, *how: (calls.append(1), decide(self, *how))[1])
    device = kind(power=power, backend="cupy", **parameters).fit(graph, y, init=init if warm else None)
    # With the one that fetches the result, and the first evaluation.
    waits = counters.waits - before[0]
    assert 2 <= waits <= device.n_iter_
    assert counters.downloads == counters.waits
    # Near the end hardly an evaluation is made in vain, and none where the number of steps ends the search.
    in_vain = len(calls) - (device.n_evaluations_ - 1)
    assert in_vain == 0 if "max_iter" in parameters else in_vain <= 2


@pytest.mark.usefixtures("standin_cupy")
def test_the_numbers_of_a_search_are_those_of_the_kernels():
    assert tuple(SEARCH) == Search._fields
    assert set(re.findall(r"\b(?:row|before|after) /\* (\d+) \*/", source("search"))) == {str(len(SEARCH))}
    told = dict(re.findall(r"#define (SEARCHING|ASKING|STOPPED|FINISHED) (\d)", source("search")))
    assert all(getattr(optimize, name) == int(number) for name, number in told.items())
    assert len(told) == 4


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 3])
def test_the_preconditioner_is_that_of_the_cpu(device, power, columns):
    L = laplacian(knn_weights(150, parts=3, isolated=4))
    confidence = np.where(np.arange(150) % 7 == 0, 1.0, 0.0)
    gradient = np.random.default_rng(0).normal(size=(150, columns))
    expected = PolynomialPreconditioner(L, power, confidence, 0.7)(gradient)
    preconditioner = DevicePreconditioner(DeviceMatrix.of(device, L), L, power, confidence, 0.7)
    found = device.to_host(preconditioner(device.to_device(gradient)))
    np.testing.assert_allclose(found, expected, atol=1e-13 * np.abs(expected).max())


def test_the_preconditioner_of_a_graph_without_edges(device):
    L = csr_array((5, 5))
    gradient = np.arange(5.0)[:, None]
    host = PolynomialPreconditioner(L, 1, np.ones(5), 0.7)
    found = DevicePreconditioner(DeviceMatrix.of(device, L), L, 1, np.ones(5), 0.7)(device.to_device(gradient))
    np.testing.assert_allclose(device.to_host(found), host(gradient))


@pytest.mark.usefixtures("standin_cupy")
def test_what_is_not_wanted_of_the_preconditioner_is_not_computed(monkeypatch):
    device = get_backend("cupy")
    L = laplacian(knn_weights(60))
    gradient = device.to_device(np.ones((60, 1)))
    preconditioner = DevicePreconditioner(DeviceMatrix.of(device, L), L, 2, np.ones(60), 0.7)
    monkeypatch.setattr(device.xp, "empty", lambda shape: device.xp.full(shape, 7.0))
    assert (device.to_host(preconditioner(gradient, device.xp.zeros(1))) == 7.0).all()
