"""Estimators with ``backend="cupy"``, on the stand-in with emulated kernels, beside the same ones on the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_moons

from homophily import (
    ERRClassifier,
    ERREmbedding,
    IRRClassifier,
    KNNGraph,
    ParameterError,
    SpectralEmbedding,
    relationship_energy,
)
from homophily.device import operations
from homophily.estimators import transduction
from homophily.relationship import nystrom

from .standin import counters

on_device = pytest.mark.usefixtures("cupy")
counted = pytest.mark.usefixtures("standin_cupy")


class PlainERR(ERRClassifier):
    """ERR as the paper has it, without a preconditioner."""

    preconditioned = False


def few_labels(u=300, labels=12):
    X, y = make_moons(u, noise=0.1, random_state=0)
    few = y.copy()
    few[labels:] = -1
    return X, few


@on_device
@pytest.mark.parametrize("power", [1, 2])
def test_the_linear_solution_is_that_of_the_cpu(power):
    X, y = few_labels()
    host, device = (IRRClassifier(power=power, backend=name).fit(X, y) for name in ("numpy", "cupy"))
    np.testing.assert_allclose(device.solution_, host.solution_, atol=1e-8)
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-9)
    assert (device.transduction_ == host.transduction_).all()


def three_classes(u=240):
    X, y = make_blobs(u, centers=3, cluster_std=1.8, random_state=0)
    few = y.copy()
    few[40:] = -1
    assert set(few) == {-1, 0, 1, 2}
    return X, few


@on_device
@pytest.mark.parametrize(
    ("data", "parameters"),
    [
        (few_labels, {}),
        (few_labels, {"kind": PlainERR, "power": 1, "repulsion": 1.0}),
        (few_labels, {"engine": "tiles"}),
        (few_labels, {"sharpen": True}),
        (three_classes, {}),
        (three_classes, {"sharpen": True}),
        (three_classes, {"sharpen": True, "normalized": False}),
        (three_classes, {"multiclass": "one-vs-rest"}),
        (three_classes, {"engine": "tiles"}),
        (three_classes, {"engine": "nystrom"}),
    ],
)
def test_the_labels_of_err_are_those_of_the_cpu(data, parameters, monkeypatch):
    X, y = data()
    # Landmarks are placed anew on the CPU only.
    monkeypatch.setattr(nystrom, "WANTED_GRADIENT_ERROR", 1.0)
    parameters = {"max_iter": 4, "tol": 0.0, **parameters}
    kind = parameters.pop("kind", ERRClassifier)
    host, device = (kind(backend=name, **parameters).fit(X, y) for name in ("numpy", "cupy"))
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-7)
    # Sharp relationships start from a rougher solution.
    np.testing.assert_allclose(device.solution_, host.solution_, atol=1e-4 if "sharpen" in parameters else 1e-5)
    assert (device.transduction_ == host.transduction_).all()
    assert (device.n_iter_, device.n_evaluations_) == (host.n_iter_, host.n_evaluations_)


@on_device
@pytest.mark.parametrize(
    ("data", "parameters"),
    [(few_labels, {"power": 1}), (few_labels, {"power": 2}), (three_classes, {"multiclass": "one-vs-rest"})],
)
def test_the_labels_of_mixed_precision_are_those_of_the_cpu(data, parameters):
    X, y = data()
    host, device = (
        ERRClassifier(sharpen=False, backend=name, **parameters).fit(X, y) for name in ("numpy", "cupy-mixed")
    )
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-6)
    assert (device.transduction_ == host.transduction_).all()


@counted
@pytest.mark.parametrize("multiclass", ["vector", "one-vs-rest"])
def test_every_step_of_err_is_computed_on_the_device(multiclass, monkeypatch):
    X, y = three_classes()
    graph = KNNGraph().fit(X)
    for name in ("solve_irr", "make_engine", "LabelEnergy"):
        monkeypatch.setattr(operations, name, lambda *_, **__: pytest.fail("computed on the CPU"))
    seen = []
    device = ERRClassifier(backend="cupy", max_iter=2, tol=0.0, multiclass=multiclass)
    device.set_params(callback=lambda state: state.iteration and seen.append(counters.launches)).fit(graph, y)
    assert len(seen) == (6 if multiclass == "one-vs-rest" else 2)
    assert all(before < after for before, after in zip([0, *seen], seen, strict=False))
    assert device.engine_ == "cells"


@counted
def test_conjugate_gradients_look_at_the_residual_every_ten_iterations():
    X, y = few_labels()
    graph = KNNGraph().fit(X)
    seen = []
    device = IRRClassifier(backend="cupy", callback=lambda iteration, _: seen.append(iteration)).fit(graph, y)
    assert seen == list(range(10, device.n_iter_ + 1, 10))
    # The residual before and after each start, and the result.
    assert counters.waits <= len(seen) + 4


@counted
@pytest.mark.usefixtures("chosen_method")
def test_a_graph_so_deep_that_it_is_better_factorised_is_left_to_the_cpu():
    chain, y = np.linspace(0, 1, 500)[:, None], np.full(500, -1)
    y[[0, -1]] = 0, 1
    host, device = (IRRClassifier(backend=name).fit(KNNGraph(2).fit(chain), y) for name in ("numpy", "cupy"))
    assert counters.launches == 0
    np.testing.assert_array_equal(device.solution_, host.solution_)


@on_device
def test_a_repeated_fit_gives_the_same_bits():
    X, y = three_classes()
    first, second = (ERRClassifier(backend="cupy", max_iter=3, tol=0.0).fit(X, y) for _ in range(2))
    assert (first.solution_ == second.solution_).all()


@on_device
def test_probabilities_and_new_points_follow(monkeypatch):
    # A device iterates where the CPU factorises: solved further than calibrations need, both have the same influences.
    exact = partial(transduction.without_own_label, tolerance=1e-6)
    monkeypatch.setattr(transduction, "without_own_label", exact)
    X, y = few_labels(200)
    host, device = (ERRClassifier(sharpen=False, backend=name).fit(X, y) for name in ("numpy", "cupy"))
    new = X[:20] + 0.01
    np.testing.assert_allclose(device.predict_proba(new), host.predict_proba(new), atol=1e-3)
    assert (device.predict(new) == host.predict(new)).all()


@on_device
@pytest.mark.parametrize("data", [few_labels, three_classes])
def test_the_sparse_form_is_that_of_the_cpu(data):
    X, y = data()
    how = {"relationship_neighbors": 30, "tol": 1e-8, "max_iter": 500}
    host, device = (ERRClassifier(backend=name, **how).fit(X, y) for name in ("numpy", "cupy"))
    assert device.energy_ == pytest.approx(host.energy_, rel=1e-8)
    np.testing.assert_allclose(device.solution_, host.solution_, atol=1e-4)
    assert (device.transduction_ == host.transduction_).all()


@on_device
@pytest.mark.parametrize("number", [np.int64, np.int32])
@pytest.mark.parametrize("real", [np.float64, np.float32])
def test_numbers_of_numpy_are_numbers(number, real):
    X, y = few_labels(100)
    classifier = ERRClassifier(
        power=number(2), lambda1=real(0.01), lambda2=real(1), sigma_f=real(0.5), repulsion=real(1.5),
        max_iter=number(200), tol=real(1e-3), sharpen=False, backend="cupy",
    )  # fmt: skip
    assert classifier.fit(X, y).n_evaluations_ > 1
    graph = KNNGraph(number(30), backend="cupy").fit(X)
    ERREmbedding(number(2), max_iter=number(3), tol=real(0), backend="cupy").fit(graph)
    SpectralEmbedding(number(2), backend="cupy").fit(graph)
    F = np.arange(100.0) / 100
    for engine in ("cells", "tiles", "nystrom"):
        relationship_energy(F, graph.laplacian(), sigma_f=real(0.5), engine=engine, backend="cupy")


@on_device
def test_an_array_on_the_device_is_refused_by_a_sentence(cupy):
    X, y = few_labels(60)
    on_gpu = cupy.asarray(X)
    fitted = IRRClassifier(backend="cupy").fit(X, y)
    for refused in (
        lambda: KNNGraph(backend="cupy").fit(on_gpu),
        lambda: IRRClassifier(backend="cupy").fit(on_gpu, y),
        lambda: fitted.predict(on_gpu),
        lambda: ERREmbedding(backend="cupy").fit(on_gpu),
    ):
        with pytest.raises(ParameterError, match=r"'X' parameter must be an array on the host.* pass X.get\(\)"):
            refused()
    with pytest.raises(ParameterError, match=r"pass F.get\(\)"):
        relationship_energy(on_gpu, np.eye(60), sigma_f=1.0, backend="cupy")


@on_device
def test_fits_from_two_threads_are_those_of_one():
    data = [(X[:, ::-1] if turned else X, y) for X, y in [few_labels(200)] for turned in (False, True)]

    def fit(given):
        return ERRClassifier(sharpen=False, backend="cupy").fit(*given).solution_

    alone = [fit(given) for given in data]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(fit, data * 4))
    for found, expected in zip(together, alone * 4, strict=True):
        np.testing.assert_array_equal(found, expected)
