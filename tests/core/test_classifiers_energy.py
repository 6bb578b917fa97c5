"""What the classifiers minimise and how: energy, start, steps, cancelling, engines and the sparse form."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.estimators.classifiers import Start
from homophily.estimators.relationship_energy import relationship_energy
from homophily.relationship import chebyshev, nufft

from .oracle import with_repulsion
from .small_sets import blobs, both, moons

# Few steps, or tolerances that 50 do not reach, are what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_without_relationships_err_is_the_linear_solution(data, power, normalized):
    X, y = data()
    err = ERRClassifier(lambda2=0.0, power=power, normalized=normalized).fit(X, y)
    irr = IRRClassifier(power=power, normalized=normalized, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(err.solution_, irr.solution_, rtol=0, atol=1e-10 * np.abs(irr.solution_).max())
    assert (err.transduction_ == irr.transduction_).all()
    assert err.energy_ == pytest.approx(irr.energy_, rel=1e-10)


@pytest.mark.parametrize("power", [1, 2])
def test_without_relationships_the_descent_itself_finds_the_linear_solution(power):
    X, y = moons()
    irr = IRRClassifier(power=power, tol=1e-12).fit(X, y)
    err = ERRClassifier(lambda2=0.0, power=power, lambda1=0.5, max_iter=2000, tol=1e-12)
    irr.set_params(lambda1=0.5).fit(X, y)
    found = err.fit(X, y, init=np.zeros((len(X), 1)))
    np.testing.assert_allclose(found.solution_, irr.solution_, rtol=0, atol=1e-6)


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("repulsion", "counted"), [(None, 0.65), (1.0, 1.0), (0.0, 0.0), (1.5, 1.5)])
def test_the_energy_told_is_the_energy_of_the_solution(data, power, repulsion, counted):
    X, y = data()
    model = ERRClassifier(power=power, lambda1=0.03, lambda2=0.02, sigma_f=0.9, repulsion=repulsion).fit(X, y)
    F, G = model.solution_, model.graph_.laplacian(power)
    one_hot = (y[:, None] == np.arange(y.max() + 1)).astype(float)
    T = one_hot if data is blobs else one_hot[:, 1:] - one_hot[:, :1]
    expected = np.sum((y != -1)[:, None] * (F - T) ** 2) + 0.03 * np.trace(F.T @ (G @ F))
    expected += 0.02 / len(X) * relationship_energy(F, with_repulsion(G, counted), sigma_f=0.9, engine="dense")[0]
    assert model.energy_ == pytest.approx(expected, rel=1e-8)


class PlainERR(ERRClassifier):
    """ERR as the paper has it, without a preconditioner."""

    preconditioned = False


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("classifier", [ERRClassifier, PlainERR])
def test_energy_never_rises(data, classifier):
    X, y = data()
    states = []
    model = classifier(sharpen=False, callback=states.append).fit(X, y)
    energies = [state.energy for state in states if not isinstance(state, Start)]
    assert len(energies) > 3
    assert (np.diff(energies) < 0).all()
    start = IRRClassifier().fit(X, y).solution_
    assert energies[0] == pytest.approx(ERRClassifier(max_iter=0).fit(X, y, init=start).energy_, rel=1e-8)
    assert model.energy_ <= energies[-1]


#: The iterations expected, and those that a factorisation is worth.
EXPECTED = {"cg": lambda *_: (1.0, np.inf), "direct": lambda *_: (2.0, 1.0)}


@pytest.mark.parametrize("method", ["cg", "direct"])
def test_the_callback_sees_the_start_and_every_step(method, monkeypatch):
    monkeypatch.setattr("homophily.solve.irr.expected_iterations", EXPECTED[method])
    X, y = moons()
    seen = []
    model = ERRClassifier(sharpen=False, callback=seen.append).fit(X, y)
    steps = [state for state in seen if not isinstance(state, Start)]
    starts = seen[: len(seen) - len(steps)]
    assert all(isinstance(start, Start) for start in starts)
    assert {(start.iteration, start.energy, start.gradient_norm, start.n_evaluations) for start in starts} == {
        (0, None, None, 0)
    }
    assert len(starts) == 1 if method == "direct" else len(starts) > 3
    assert starts[-1].residual <= 1e-10
    assert [state.iteration for state in steps] == list(range(model.n_iter_ + 1))
    assert steps[-1].energy == model.energy_
    assert steps[-1].n_evaluations <= model.n_evaluations_


def test_a_given_start_shows_the_callback_no_other():
    X, y = moons()
    seen = []
    ERRClassifier(sharpen=False, callback=seen.append).fit(X, y, init=np.zeros(len(X)))
    assert not any(isinstance(state, Start) for state in seen)


def test_every_evaluation_is_counted(monkeypatch):
    X, y = moons()
    calls = []
    evaluate = chebyshev.ChebyshevEngine.__call__
    monkeypatch.setattr(chebyshev.ChebyshevEngine, "__call__", lambda engine, F: calls.append(1) or evaluate(engine, F))
    models = (
        ERRClassifier(sharpen=False),
        PlainERR(sharpen=False),
        ERRClassifier(max_iter=3),
        ERRClassifier(max_iter=0),
        ERRClassifier(tol=0.0),
    )
    for model in models:
        calls.clear()
        model.fit(X, y)
        assert model.engine_ == "chebyshev"
        assert model.n_evaluations_ == len(calls)


@pytest.mark.parametrize("data", [moons, blobs])
def test_preconditioning_reaches_a_lower_energy_in_fewer_evaluations(data):
    X, y = data()
    plain = PlainERR(power=1, tol=1e-6).fit(X, y)
    short = ERRClassifier(power=1, tol=1e-6).fit(X, y)
    assert short.energy_ <= plain.energy_ + 1e-9 * abs(plain.energy_)
    assert short.n_evaluations_ < plain.n_evaluations_


@pytest.mark.parametrize("data", [moons, blobs])
def test_a_start_at_the_solution_stays_there(data):
    X, y = data()
    model = ERRClassifier(tol=0.05).fit(X, y)
    again = ERRClassifier(tol=0.07).fit(X, y, init=model.solution_)
    assert again.n_iter_ == 0
    assert again.n_evaluations_ == 1
    assert again.energy_ <= model.energy_
    np.testing.assert_allclose(again.solution_, model.solution_, atol=1e-3)


def test_a_start_near_the_solution_is_shorter_than_one_from_scratch():
    X, y = moons(labels=20)
    model = ERRClassifier(tol=1e-4).fit(X, y)
    changed = y.copy()
    changed[3] = -1
    scratch = ERRClassifier(tol=1e-4).fit(X, changed)
    warm = ERRClassifier(tol=1e-4).fit(X, changed, init=model.solution_)
    assert warm.n_evaluations_ <= scratch.n_evaluations_
    assert warm.energy_ == pytest.approx(scratch.energy_, rel=1e-3)


@both
def test_a_start_may_be_a_vector_for_two_classes(estimator):
    X, y = moons()
    start = np.linspace(-1, 1, len(X))
    a, b = estimator().fit(X, y, init=start), estimator().fit(X, y, init=start[:, None])
    assert (a.solution_ == b.solution_).all()


class Cancelled(Exception):
    pass


def cancel(*_):
    raise Cancelled


@both
def test_a_cancelled_fit_leaves_no_fitted_model(estimator, monkeypatch):
    # Iterations, not a factorisation, so that IRR's callback is asked.
    monkeypatch.setattr("homophily.solve.irr.expected_iterations", EXPECTED["cg"])
    X, y = moons()
    model = estimator(callback=cancel)
    with pytest.raises(Cancelled):
        model.fit(X, y)
    for method in ("predict", "predict_proba", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(model, method)(X)
    assert not hasattr(model, "transduction_")
    assert not hasattr(model, "label_distributions_")


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("multiclass", ["vector", "one-vs-rest"])
def test_the_start_can_be_cancelled(data, multiclass, monkeypatch):
    monkeypatch.setattr("homophily.solve.irr.expected_iterations", EXPECTED["cg"])
    # What comes after the start is never reached.
    monkeypatch.setattr(ERRClassifier, "_engine", None)
    X, y = data()
    seen = []

    def cancel_third(state):
        seen.append(state)
        if len(seen) == 3:
            raise Cancelled

    model = ERRClassifier(multiclass=multiclass, callback=cancel_third)
    with pytest.raises(Cancelled):
        model.fit(X, y)
    assert all(isinstance(state, Start) for state in seen)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_a_cancelled_refit_does_not_answer_from_a_mixture():
    X, y = moons()
    model = ERRClassifier(sharpen=False).fit(X, y)
    before = model.predict(X)
    with pytest.raises(Cancelled):
        model.set_params(callback=cancel).fit(X[:100] + 5.0, y[:100])
    model.set_params(callback=None)
    # Either the old model still answers whole, or there is none.
    try:
        assert (model.predict(X) == before).all()
    except NotFittedError:
        assert not hasattr(model, "transduction_")


def test_steps_that_do_not_reach_the_tolerance_warn():
    X, y = moons()
    with pytest.warns(ConvergenceWarning, match="Not converged after 1 steps"):
        ERRClassifier(max_iter=1).fit(X, y)


@pytest.mark.parametrize("lambda1", [1e-6, 1e3])
@pytest.mark.parametrize("power", [1, 2])
@both
def test_extreme_smoothing_converges(estimator, power, lambda1):
    X, y = moons()
    model = estimator(lambda1=lambda1, power=power).fit(X, y)
    assert np.isfinite(model.solution_).all()


def test_an_unreachable_tolerance_warns(monkeypatch):
    monkeypatch.setattr("homophily.solve.irr.expected_iterations", EXPECTED["cg"])
    X, y = moons()
    with pytest.warns(ConvergenceWarning):
        IRRClassifier(tol=1e-300).fit(X, y)


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_many_points_of_few_classes_find_an_engine(classes):
    X, y = blobs(1200, classes=classes)
    model = ERRClassifier(max_iter=2).fit(X, y)
    assert model.engine_ == {2: "chebyshev", 3: "tiles", 4: "tiles"}[classes]
    dense = ERRClassifier(max_iter=2, engine="dense").fit(X, y)
    assert model.energy_ == pytest.approx(dense.energy_, rel=1e-7)


def test_a_trial_step_out_of_an_engines_range_is_backed_off_from(monkeypatch):
    X, y = blobs(200, classes=3)
    # The engine's grid holds little more than the start's spread.
    spread = np.ptp(IRRClassifier().fit(X, y).solution_, axis=0)
    monkeypatch.setattr(nufft, "MOST_MODES", int(1.1 * prod(nufft._box(spread, 0.5, nufft._accuracy(1e-9))[1])))
    model = ERRClassifier(sigma_f=0.5, lambda2=10.0, engine="nufft", max_iter=5).fit(X, y)
    assert np.isfinite(model.energy_)


def test_a_start_out_of_an_engines_range_is_refused_by_name():
    X, y = blobs(classes=3)
    with pytest.raises(ValueError, match="engine"):
        ERRClassifier(sigma_f=1e-4, engine="nufft").fit(X, y)
    X, y = moons()
    with pytest.raises(ValueError, match="engine"):
        ERRClassifier(sigma_f=1e-9, engine="chebyshev").fit(X, y)


@pytest.mark.parametrize("engine", ["dense", "tiles", "chebyshev", "nufft", "nystrom"])
def test_every_engine_finds_the_same_solution(engine):
    X, y = moons(150)
    model = ERRClassifier(engine=engine, power=1, sigma_f=1.5, tol=1e-6).fit(X, y)
    assert model.engine_ == engine
    # Low rank is worth a few percent of a value, the exact engines differ by where the descent stops.
    reference = ERRClassifier(power=1, sigma_f=1.5, tol=1e-6).fit(X, y)
    np.testing.assert_allclose(model.solution_, reference.solution_, atol=0.1 if engine == "nystrom" else 1e-3)
    assert (model.transduction_ == reference.transduction_).mean() > 0.98
    assert (model.engine_error_ is not None) == (engine == "nystrom")


# -- sparse relationships ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [moons, blobs])
@pytest.mark.parametrize("normalized", [True, False])
def test_a_full_mask_is_the_full_form(data, normalized):
    X, y = data(150)
    masked = ERRClassifier(relationship_neighbors=150, normalized=normalized, power=1, tol=1e-4).fit(X, y)
    full = ERRClassifier(normalized=normalized, power=1, repulsion=1.0, tol=1e-4).fit(X, y)
    assert masked.engine_ == "sparse"
    assert masked.energy_ == pytest.approx(full.energy_, rel=1e-8)
    np.testing.assert_allclose(masked.solution_, full.solution_, atol=1e-4)
    assert (masked.transduction_ == full.transduction_).all()


@pytest.mark.parametrize("data", [moons, blobs])
def test_a_small_mask_classifies_too(data):
    X, y = data()
    model = ERRClassifier(relationship_neighbors=30).fit(X, y)
    full = ERRClassifier(sharpen=False, power=1).fit(X, y)
    assert (model.transduction_ == full.transduction_).mean() > 0.9
    assert np.isfinite(model.predict_proba(X[:10] + 0.01)).all()


def test_a_mask_with_another_power_is_refused_by_name():
    X, y = moons()
    with pytest.raises(ValueError, match=r"'power' parameter of ERRClassifier must be 1 when relationship_neighbors"):
        ERRClassifier(power=2, relationship_neighbors=10).fit(X, y)


def test_a_mask_on_weights_alone_is_refused():
    X, y = moons()
    W = KNNGraph().fit(X).W
    with pytest.raises(ValueError, match="affinity"):
        ERRClassifier(graph=KNNGraph(metric="affinity"), relationship_neighbors=10).fit(W, y)
