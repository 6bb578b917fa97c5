"""Scores of labels without themselves, which probabilities are calibrated on, against fits that never saw them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.device.operations import CpuOperations
from homophily.estimators import held_out
from homophily.estimators.held_out import without_own_fold, without_own_label
from homophily.estimators.transduction import GraphClassifier


@pytest.fixture(scope="module")
def digits() -> tuple[KNNGraph, Any, Any]:
    """600 digits, 30 of which are labelled."""
    X, y = load_digits(return_X_y=True)
    few = y[:600].copy()
    few[30:] = -1
    return KNNGraph().fit(X[:600]), y[:600], few


def left_out(model: Any, graph: KNNGraph, few: Any) -> Any:
    """Values at each label of a fit without it."""
    values = []
    for point in np.flatnonzero(few >= 0):
        without = few.copy()
        without[point] = -1
        values.append(model.fit(graph, without).solution_[point])
    return np.array(values)


def without_labels(model: Any, *accuracy: Any) -> Any:
    operations = CpuOperations(model.graph_.laplacian(normalized=model.normalized), 1)
    labels = model.given_labels_
    given = labels.confidence, model._own_targets(model._problem(labels)), labels.class_index
    return without_own_label(operations, *given, *accuracy, lambda1=model.lambda1, power=model._power)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("normalized", [True, False])
def test_linear_values_without_a_label_are_those_of_a_fit_without_it(digits: Any, power: int, normalized: bool) -> None:
    graph, _, few = digits
    model = IRRClassifier(power=power, normalized=normalized, lambda1=0.1).fit(graph, few)
    expected = left_out(IRRClassifier(power=power, normalized=normalized, lambda1=0.1), graph, few)
    found = without_labels(model, 30, 1e-12)
    inside = np.abs(expected - 0.5) <= 1.0
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-6)
    # Where a fit overshoots, the value is cut half a target's distance beyond the targets.
    assert found.min() >= -0.5
    assert found.max() <= 1.5


def test_labels_that_share_a_column_hardly_disturb_each_other(digits: Any) -> None:
    graph, _, few = digits
    model = IRRClassifier().fit(graph, few)
    expected = np.clip(left_out(IRRClassifier(), graph, few), -0.5, 1.5)
    assert np.count_nonzero(few >= 0) > held_out.COLUMNS
    assert np.median(np.abs(without_labels(model) - expected)) < 0.02


@pytest.mark.parametrize("parameters", [{}, {"multiclass": "one-vs-rest"}, {"power": 1, "relationship_neighbors": 10}])
def test_values_of_err_without_a_label_are_near_those_of_a_fit_without_it(
    digits: Any, parameters: dict[str, Any]
) -> None:
    graph, _, few = digits
    model = ERRClassifier(sharpen=False, **parameters).fit(graph, few)
    found, with_all = without_labels(model), model.solution_[few >= 0]
    expected = left_out(ERRClassifier(sharpen=False, **parameters), graph, few)
    error = np.sqrt(np.mean((found - expected) ** 2))
    assert error < 0.5 * np.sqrt(np.mean((with_all - expected) ** 2))


def test_a_wrong_label_does_not_support_itself_when_its_fold_is_out(digits: Any) -> None:
    graph, y, few = digits
    wrong = few.copy()
    point = np.flatnonzero(few == 6)[0]
    wrong[point] = 1
    model = ERRClassifier().fit(graph, wrong)
    assert model.transduction_[point] == 1
    labels, targets = model.given_labels_, model.given_labels_.targets
    operations = CpuOperations(graph.laplacian(), 1)
    logits = without_own_fold(
        operations, graph.degrees, True, labels.confidence, targets, labels.class_index, model.transduction_
    )
    own = np.flatnonzero(wrong >= 0) == point
    assert logits[own].argmax() == 6
    assert np.mean(logits.argmax(axis=1) == y[wrong >= 0]) > 0.6


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("sharpen", [False, True])
def test_a_calibration_repeats_no_fit(digits: Any, sharpen: bool, classes: int, monkeypatch: Any) -> None:
    graph, _, few = digits
    few = np.where(few < 0, -1, few % classes)
    model = ERRClassifier(sharpen=sharpen).fit(graph, few)

    def refuse(*_: Any) -> None:
        raise AssertionError("a calibration fitted again")

    monkeypatch.setattr(GraphClassifier, "_solve", refuse)
    slope = model.calibration_.slope
    assert slope != model._default_slope
    assert ERRClassifier.calibration_.fget is not None
    model._lazy.pop("calibration")
    assert model.calibration_.slope == slope


def test_labels_that_are_the_only_ones_of_their_class_in_a_component_tell_nothing() -> None:
    X = np.concatenate([np.random.default_rng(0).normal(size=(30, 2)), [[100.0, 0.0], [101.0, 0.0], [102.0, 0.0]]])
    few = np.full(33, -1)
    few[[0, 1, 30]] = 0, 1, 0
    model = IRRClassifier(graph=KNNGraph(n_neighbors=2)).fit(X, few)
    assert model.calibration_.slope == model._default_slope
