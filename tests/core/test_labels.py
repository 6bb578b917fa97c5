import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import DataConversionWarning

from homophily import IRRClassifier
from homophily.supervision.class_shares import check_prior, class_offsets, estimate_prior
from homophily.supervision.labels import decide_index, encode_labels

from .small_sets import moons


def test_two_classes_become_one_column_of_minus_and_plus_one():
    labels = encode_labels([3, -1, 7, 7])
    assert labels.targets.shape[1] == 1
    assert_array_equal(labels.classes, [3, 7])
    assert_array_equal(labels.targets, [[-1], [0], [1], [1]])
    assert_array_equal(labels.confidence, [1, 0, 1, 1])
    assert_array_equal(labels.class_index, [0, -1, 1, 1])
    assert_array_equal(labels.counts, [1, 2])


def test_more_classes_become_one_column_each():
    labels = encode_labels([0, 2, -1, 5])
    assert labels.targets.shape[1] == len(labels.classes)
    assert_array_equal(labels.targets, [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize(
    "y",
    [
        ["a", "", "b"],
        np.array(["a", None, "b"], dtype=object),
        np.array(["a", -1, "b"], dtype=object),
        np.array(["a", np.nan, "b"], dtype=object),
        np.array([0.0, np.nan, 1.0]),
        np.array([0.0, -1.0, 1.0]),
        np.array([0, -1, 1], dtype=object),
    ],
)
def test_missing_labels_are_recognised_in_every_type(y):
    labels = encode_labels(y)
    assert_array_equal(labels.confidence, [1, 0, 1])
    assert_array_equal(labels.targets[:, 0], [-1, 0, 1])
    assert labels.classes.dtype != object


def test_booleans_are_all_labels():
    assert_array_equal(encode_labels([True, False]).targets, [[1], [-1]])


def test_shares_are_normalised_and_zero_rows_are_unlabelled():
    binary = encode_labels([[0.25, 0.75], [0, 0], [2, 0]])
    assert_array_equal(binary.targets, [[0.5], [0], [-1]])
    assert_array_equal(binary.confidence, [1, 0, 1])
    several = encode_labels([[1, 1, 2], [0, 0, 0], [0, 0, 1]])
    assert_array_equal(several.targets, [[0.25, 0.25, 0.5], [0, 0, 0], [0, 0, 1]])
    assert_array_equal(several.class_index, [2, -1, 2])


def test_a_weight_of_zero_is_no_label():
    labels = encode_labels([0, 1, 2, 1], sample_weight=[1, 2, 0, 0.5])
    assert_array_equal(labels.classes, [0, 1])
    assert_array_equal(labels.confidence, [1, 2, 0, 0.5])
    assert_array_equal(labels.class_index, [0, 1, -1, 1])
    assert_array_equal(labels.counts, [1, 2.5])


@pytest.mark.parametrize(
    ("y", "weight", "message"),
    [
        ([-1, -1], None, "No labelled point"),
        ([1, 1, -1], None, "got 1 class"),
        ([0, 1], [0, 1], "got 1 class"),
        ([0.5, 1.5, 2.2], None, "Unknown label type"),
        ([[0.5, np.nan]], None, "finite and non-negative"),
        ([[0.5, -0.5]], None, "finite and non-negative"),
        ([0, 1], [1, np.nan], "sample_weight contains NaN"),
        ([0, 1], [1, -1], "Negative values"),
        ([0, 1], [1], "sample_weight.shape"),
        (np.zeros((2, 2, 2)), None, "dim <= 2 is required"),
    ],
)
def test_bad_labels_are_refused(y, weight, message):
    with pytest.raises(ValueError, match=message):
        encode_labels(y, weight)


def test_a_column_of_labels_is_read_with_a_warning():
    with pytest.warns(DataConversionWarning):
        assert_array_equal(encode_labels([[0], [1]]).targets, [[-1], [1]])


def test_estimated_prior_is_smoothed():
    assert_allclose(estimate_prior(encode_labels([0, 0, 0, 1, -1])), [4 / 6, 2 / 6])


@pytest.mark.parametrize("prior", [[0.5, 0.6], [1.0, 0.0], [0.2, 0.3, 0.5], [np.nan, 0.5], 0.5])
def test_bad_priors_are_refused(prior):
    with pytest.raises(ValueError, match="'class_prior' parameter"):
        check_prior(prior, 2)


def shares(scores, offsets):
    classes = 2 if scores.shape[1] == 1 else scores.shape[1]
    chosen = decide_index(scores + offsets)
    return np.bincount(chosen, minlength=classes)


def test_a_binary_offset_is_the_quantile():
    scores = np.random.default_rng(0).normal(size=(1000, 1))
    assert_array_equal(shares(scores, class_offsets(scores, [0.7, 0.3])), [700, 300])


def test_equal_scores_are_never_split():
    scores = np.repeat([0.0, 1.0, 2.0], [10, 80, 10])[:, None]
    assert_array_equal(shares(scores, class_offsets(scores, [0.3, 0.7])), [10, 90])
    constant = np.ones((10, 1))
    assert_array_equal(shares(constant, class_offsets(constant, [0.8, 0.2])), [10, 0])
    assert_array_equal(shares(constant, class_offsets(constant, [0.2, 0.8])), [0, 10])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 10), st.sampled_from([1e-6, 1.0, 1e4]))
def test_offsets_meet_any_prior(seed, classes, scale):
    rng = np.random.default_rng(seed)
    u = 500
    scores = scale * (rng.normal(size=(u, classes)) ** 3 + rng.normal(size=classes))
    prior = rng.dirichlet(np.full(classes, 2.0)) * 0.9 + 0.1 / classes
    offsets = class_offsets(scores, prior)
    assert np.abs(shares(scores, offsets) - u * prior).max() <= 2.5
    assert_array_equal(class_offsets(scores, prior), offsets)


def test_offsets_of_hard_scores():
    rng = np.random.default_rng(0)
    u, classes = 2000, 5
    prior = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
    # Nearly one-hot, and a class that no point prefers.
    sure = np.eye(classes)[rng.integers(0, 4, u)] + 1e-3 * rng.normal(size=(u, classes))
    # Heavy tails and columns on different scales.
    heavy = rng.standard_cauchy(size=(u, classes)) * [1, 10, 100, 1e-2, 1]
    for scores in (sure, heavy):
        assert np.abs(shares(scores, class_offsets(scores, prior)) - u * prior).max() <= 0.01 * u


def test_duplicate_points_are_matched_as_far_as_they_allow():
    rng = np.random.default_rng(0)
    scores = np.repeat(rng.normal(size=(100, 3)), 10, axis=0)
    assert np.abs(shares(scores, class_offsets(scores, [0.2, 0.3, 0.5])) - [200, 300, 500]).max() <= 20
    constant = np.zeros((50, 3))
    assert_array_equal(shares(constant, class_offsets(constant, [0.2, 0.5, 0.3])), [0, 50, 0])


def test_offsets_of_sixty_thousand_points_take_seconds_at_most():
    rng = np.random.default_rng(0)
    scores = 0.1 * rng.normal(size=(60_000, 10)) + np.eye(10)[rng.integers(0, 10, 60_000)]
    prior = rng.dirichlet(np.full(10, 5.0))
    start = time.process_time()
    offsets = class_offsets(scores, prior)
    assert time.process_time() - start < 10
    assert np.abs(shares(scores, offsets) - 60_000 * prior).max() <= 5


def test_decisions_are_the_users_classes():
    classes = np.array(["cat", "dog"])
    assert_array_equal(classes[decide_index(np.array([[-0.3], [0.1]]))], ["cat", "dog"])
    assert_array_equal(decide_index(np.array([[0.5, 0.2, 0.1]])), [0])


@pytest.mark.parametrize("kind", ["Int64", "Int8", "UInt16"])
def test_integers_of_pandas_stay_integers_where_some_are_missing(kind):
    pandas = pytest.importorskip("pandas")
    labels = encode_labels(pandas.Series([3, None, 7, 7], dtype=kind))
    assert labels.classes.dtype == np.int64
    assert_array_equal(labels.classes, [3, 7])
    assert_array_equal(labels.confidence, [1, 0, 1, 1])


def test_missing_integers_of_pandas_give_classes_of_integers():
    pandas = pytest.importorskip("pandas")
    X, y = moons(60, labels=20)
    words = pandas.Series(np.where(y == -1, None, y), dtype="Int64")
    assert words.isna().sum() == 40
    model = IRRClassifier().fit(X, words)
    assert model.classes_.dtype == model.predict(X).dtype == np.int64
    assert (model.transduction_ == IRRClassifier().fit(X, y).transduction_).all()
    assert model.score(X, words) == model.score(X, y)


@pytest.mark.parametrize(
    "y", [["-1", "", "1"], ["-1", None, "1"], np.array(["-1", "", "1"]), np.array(["-1", -1, "1"], dtype=object)]
)
def test_minus_one_in_writing_is_a_class(y):
    labels = encode_labels(y)
    assert labels.classes.tolist() == ["-1", "1"]
    assert_array_equal(labels.confidence, [1, 0, 1])
