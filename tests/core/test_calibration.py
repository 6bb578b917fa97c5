import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax
from sklearn.datasets import load_digits

from homophily import IRRClassifier
from homophily.supervision.calibration import DEFAULT_SLOPE, Calibration, fit_calibration, label_folds
from homophily.supervision.labels import decide_index


def calibration_error(p, classes, bins=10):
    """Expected calibration error of the most probable class."""
    confidence, right = p.max(axis=1), p.argmax(axis=1) == classes
    where = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(where, confidence, bins) - np.bincount(where, right, bins)
    return np.abs(gaps).sum() / len(p)


def logistic_data(m, slope, offset, seed=0):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(m, 1))
    return f, (rng.random(m) < expit(slope * (f[:, 0] + offset))).astype(int)


def softmax_data(m, classes, slope, seed=0):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(m, classes))
    p = softmax(slope * f, axis=1)
    return f, (p.cumsum(axis=1) < rng.random((m, 1))).sum(axis=1)


# Platt's smoothing lowers steep slopes on purpose, hence none above 8.
@pytest.mark.parametrize("slope", [0.3, 2.0, 8.0])
def test_the_slope_of_logistic_data_is_recovered(slope):
    f, y = logistic_data(20_000, slope, 0.2)
    assert_allclose(fit_calibration(f, y, np.array([0.2])).slope, slope, rtol=0.1)
    g, c = softmax_data(20_000, 5, slope)
    assert_allclose(fit_calibration(g, c, np.zeros(5)).slope, slope, rtol=0.1)


@pytest.mark.parametrize("classes", [2, 10])
def test_overconfident_scores_are_calmed(classes):
    f, y = logistic_data(2000, 1.0, 0.0) if classes == 2 else softmax_data(2000, classes, 1.0)
    offsets = np.zeros(f.shape[1])
    raw = Calibration(1.0, offsets).probabilities(8 * f)
    fitted = fit_calibration(8 * f[:500], y[:500], offsets).probabilities(8 * f)
    assert calibration_error(fitted, y) < 0.06
    assert calibration_error(fitted, y) < calibration_error(raw, y) / 4


def test_binary_probability_rises_with_the_score():
    f, y = logistic_data(100, 3.0, 0.0)
    grid = np.linspace(-5, 5, 1001)[:, None]
    p = fit_calibration(f, y, np.array([0.1])).probabilities(grid)
    assert (np.diff(p[:, 1]) >= 0).all()
    assert_allclose(p.sum(axis=1), 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 10]), st.floats(1e-8, 1e8))
@example(0, 1, 2.0)  # probabilities 0.5 and the number below it
def test_the_most_probable_class_is_the_decided_one(seed, n, slope):
    rng = np.random.default_rng(seed)
    offsets = rng.normal(size=n)
    # Among them scores that differ in the last bits only, and exact ties.
    f = np.vstack([rng.normal(size=(50, n)), -offsets + 1e-17 * rng.normal(size=(50, n)), np.tile(-offsets, (2, 1))])
    p = Calibration(slope, offsets).probabilities(f)
    classes = np.arange(max(n, 2))
    assert_array_equal(p.argmax(axis=1), classes[decide_index(f + offsets)])
    assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    if n == 1:
        assert_array_equal(p[:, 1] > 0.5, classes[decide_index(f + offsets)] == 1)


def test_extreme_scores_stay_finite():
    for n in (1, 4):
        p = Calibration(1e6, np.zeros(n)).probabilities(np.array([[1e100] * n, [-1e100] * n, [0.0] * n]))
        assert np.isfinite(p).all()
    separated = np.array([[-1.0], [-1.0], [1.0], [1.0]])
    assert np.isfinite(fit_calibration(separated, np.array([0, 0, 1, 1]), np.zeros(1)).slope)


def test_wrong_scores_keep_a_small_positive_slope():
    f, y = logistic_data(200, 3.0, 0.0)
    fitted = fit_calibration(f, 1 - y, np.zeros(1))
    # Flat, as far as the prior lets it be.
    assert 0 < fitted.slope < 0.1 * DEFAULT_SLOPE


@pytest.mark.parametrize("scale", [1e-9, 1e9, 1e12])
def test_scores_on_any_scale_are_calibrated(scale):
    f, y = logistic_data(200, 3.0, 0.0)
    for classes in (y, 1 - y):
        fitted = fit_calibration(scale * f, classes, np.zeros(1))
        assert 0 < fitted.slope < np.inf
        assert np.isfinite(fitted.probabilities(scale * f)).all()


def test_few_separable_labels_do_not_claim_certainty():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 5)
    f = 0.2 * np.eye(10)[y] + 0.01 * rng.normal(size=(50, 10))
    p = fit_calibration(f, y, np.zeros(10)).probabilities(f)
    assert (p.argmax(axis=1) == y).all()
    assert 0.3 < p.max(axis=1).mean() < 0.99


def test_weights_count_as_repetitions():
    # Enough labels that the prior, which sees repetitions but not weights, hardly matters.
    f, y = logistic_data(600, 2.0, 0.0)
    weights = np.repeat([1.0, 2.0], 300)
    repeated = np.repeat(np.arange(600), weights.astype(int))
    weighted = fit_calibration(f, y, np.zeros(1), weights).slope
    assert_allclose(weighted, fit_calibration(f[repeated], y[repeated], np.zeros(1)).slope, rtol=0.1)


def test_nothing_held_out_falls_back_on_the_default():
    fitted = fit_calibration(np.empty((0, 1)), np.empty(0, dtype=int), np.zeros(1))
    assert fitted.slope == DEFAULT_SLOPE
    assert_allclose(fitted.probabilities(np.array([[1.0]]))[0, 1], 0.99)
    assert fit_calibration(np.zeros((3, 1)), np.array([0, 1, 1]), np.zeros(1)).slope == DEFAULT_SLOPE


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(2, 6), st.integers(0, 100))
def test_every_class_keeps_a_label_outside_each_fold(classes, n_folds, seed):
    index = np.array(classes)
    folds = label_folds(index, n_folds, seed)
    assert_array_equal(folds, label_folds(index, n_folds, seed))
    for fold in range(n_folds):
        assert set(index[folds != fold]) == set(index)
    for c, count in zip(*np.unique(index, return_counts=True), strict=True):
        sizes = np.bincount(folds[(index == c) & (folds >= 0)], minlength=n_folds)
        assert sizes.max() - sizes.min() <= 1
        assert sizes.sum() == (count if count > 1 else 0)


def test_one_fold_is_refused():
    with pytest.raises(ValueError, match="'n_folds' parameter"):
        label_folds(np.array([0, 1]), 1)


def test_with_many_classes_answers_are_about_as_often_right_as_they_say():
    X, y = load_digits(return_X_y=True)
    few = y.copy()
    few[200:] = -1
    model = IRRClassifier().fit(X, few)
    confidence = model.label_distributions_[200:].max(axis=1).mean()
    accuracy = np.mean(model.transduction_[200:] == y[200:])
    assert abs(confidence - accuracy) < 0.06
