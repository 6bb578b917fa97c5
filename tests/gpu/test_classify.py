"""Estimators with ``backend="cupy"``, on the stand-in with emulated kernels, beside the same ones on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_moons

from homophily import IRRClassifier

from .standin import counters

pytestmark = pytest.mark.usefixtures("cupy")


def few_labels(u=300, labels=12):
    X, y = make_moons(u, noise=0.1, random_state=0)
    few = y.copy()
    few[labels:] = -1
    return X, few


@pytest.mark.parametrize("power", [1, 2])
def test_the_linear_solution_is_that_of_the_cpu(power):
    X, y = few_labels()
    host, device = (IRRClassifier(power=power, backend=name).fit(X, y) for name in ("numpy", "cupy"))
    np.testing.assert_allclose(device.solution_, host.solution_, atol=1e-8)
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-9)
    assert (device.transduction_ == host.transduction_).all()
    assert counters.launches > 0
