"""How trials are judged, and what they share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from homophily import ERRClassifier, IRRClassifier, KNNGraph, TunedClassifier
from homophily.selection import Group, build_graph, evaluate
from homophily.supervision.calibration import label_folds
from tests.core.small_sets import blobs, moons


def irr_group(*lambdas, k=8):
    return Group(0, "graph", "irr", {"n_neighbors": k}, tuple({"lambda1": value} for value in lambdas))


def test_validation_errors_are_those_of_a_fit_that_does_not_see_the_validation_points():
    X, y = blobs(200, classes=3, labels=60)
    validation = np.arange(40, 60)
    few = np.where(np.arange(200) < 40, y, -1)
    solvers = ({"sigma_f": 0.9, "lambda2": 0.002}, {"sigma_f": 0.9, "lambda2": 0.01})
    outcome = evaluate(Group(0, "relationships", "err", {"n_neighbors": 8}, solvers), X, y, validation=validation)
    for solver, result in zip(solvers, outcome.results, strict=True):
        fitted = ERRClassifier(graph=KNNGraph(n_neighbors=8), **solver).fit(X, few)
        assert result.error == np.mean(fitted.transduction_[validation] != y[validation])
        assert result.held_out == 20
        assert result.loss > 0


def test_classes_of_validation_points_reach_no_fit():
    X, y = moons(200, labels=60)
    validation = np.arange(30, 60)
    flipped = y.copy()
    flipped[validation] = 1 - y[validation]
    one, other = (evaluate(irr_group(0.01), X, labels, validation=validation).results[0] for labels in (y, flipped))
    assert one.error == pytest.approx(1.0 - other.error)
    assert one.loss < other.loss


def test_without_validation_points_every_label_is_held_out_once():
    X, y = moons(200, labels=60)
    labelled = np.arange(60)
    folds = label_folds(y[:60], 5, 3)
    wrong = 0
    for fold in range(5):
        few = y.copy()
        few[labelled[folds == fold]] = -1
        fitted = IRRClassifier(graph=KNNGraph(n_neighbors=8), lambda1=0.01).fit(X, few)
        wrong += np.count_nonzero(fitted.transduction_[:60][folds == fold] != y[:60][folds == fold])
    result = evaluate(irr_group(0.01), X, y, seed=3).results[0]
    assert (result.error, result.held_out) == (wrong / 60, 60)


def test_very_few_labels_are_held_out_several_times_and_many_only_in_part():
    X, y = moons(300, labels=10)
    assert evaluate(irr_group(0.01), X, y).results[0].held_out == 60
    X, y = moons(2500, labels=2400)
    result = evaluate(irr_group(0.01), X, y).results[0]
    assert result.held_out == pytest.approx(600, abs=2)


def test_a_graph_may_be_built_elsewhere():
    X, y = moons(200, labels=40)
    group = irr_group(0.01, 0.1)
    graph = build_graph(group.graph, X)
    assert isinstance(graph, KNNGraph)
    assert graph.n_neighbors == 8
    one, other = evaluate(group, X, y), evaluate(group, graph, y)
    assert [result.error for result in one.results] == [result.error for result in other.results]
    assert [result.loss for result in one.results] == [result.loss for result in other.results]


def test_a_class_of_validation_points_alone_counts_as_wrong():
    X, y = blobs(200, classes=3, labels=60)
    few = np.where((np.arange(200) < 40) & (y == 2), -1, y)
    validation = np.arange(40, 60)
    result = evaluate(irr_group(0.01), X, few, validation=validation).results[0]
    assert result.error >= np.mean(y[validation] == 2)
    assert np.isfinite(result.loss)


@pytest.mark.parametrize("validation", [[], [500], [-1], [199], np.arange(20), [0.5]])
def test_validation_points_must_have_classes_and_leave_some(validation):
    X, y = moons(200, labels=20)
    with pytest.raises(ValueError, match="'validation' parameter"):
        evaluate(irr_group(0.01), X, y, validation=validation)


def test_one_label_of_each_class_is_too_few_to_judge_by():
    X, y = moons(200, labels=100)
    few = np.full(200, -1)
    few[[np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]]] = 0, 1
    with pytest.raises(ValueError, match="needs labels to judge by"):
        evaluate(irr_group(0.01), X, few)


class Spoilt:
    """Fits whose answers are right for the given λ2 only."""

    def __init__(self, good):
        self.good = good

    def __call__(self, _method, graph, y, parts, _n_jobs, _warm_start, _starts):
        self.graph, self.y, self.parts = graph, y, parts
        self.asked = []
        return self.fit

    def fit(self, parameters, number):
        self.asked.append((parameters["lambda2"], number))
        few = np.where(self.parts[number].confidence > 0, self.y, -1)
        model = IRRClassifier(n_jobs=1).fit(self.graph, few)
        if parameters["lambda2"] not in self.good:
            model.transduction_ = 1 - model.transduction_
        return model


def test_a_line_is_left_when_its_error_rises_clearly(monkeypatch):
    X, y = moons(200, labels=60)
    fits = Spoilt(good=(0.001, 0.002))
    monkeypatch.setattr("homophily.selection.evaluation._Fits", fits)
    solvers = tuple({"sigma_f": 1.3, "lambda2": value} for value in (0.001, 0.002, 0.004, 0.008, 0.016))
    next_line = tuple({"sigma_f": 2.0, "lambda2": value} for value in (0.001, 0.02))
    outcome = evaluate(
        Group(0, "relationships", "err", {}, solvers + next_line), X, y, validation=np.arange(30, 60), n_jobs=1
    )
    assert [weight for weight, _ in fits.asked] == [0.001, 0.002, 0.004, 0.001, 0.02]
    assert [result.error is None for result in outcome.results] == [False] * 3 + [True] * 2 + [False] * 2
    assert not outcome.late


def test_a_trial_that_cannot_win_is_stopped_between_folds(monkeypatch):
    X, y = moons(200, labels=60)
    fits = Spoilt(good=(0.001,))
    monkeypatch.setattr("homophily.selection.evaluation._Fits", fits)
    solvers = ({"sigma_f": 1.3, "lambda2": 0.001}, {"sigma_f": 2.0, "lambda2": 0.002})
    outcome = evaluate(Group(0, "relationships", "err", {}, solvers), X, y, n_jobs=1)
    assert [number for weight, number in fits.asked if weight == 0.002] == [0]
    first, second = outcome.results
    assert not first.pruned
    assert second.pruned
    assert 0 < second.held_out < first.held_out


def test_time_that_is_over_leaves_trials_out():
    X, y = moons(200, labels=60)
    told = []
    outcome = evaluate(irr_group(0.01, 0.1), X, y, seconds=-1.0, callback=told.append)
    assert outcome.late
    assert [trial.pruned for trial in told] == [True, True]
    assert all(result.pruned and result.error is None for result in outcome.results)


def test_trials_warn_of_nothing_and_leave_the_filters_alone():
    X, y = blobs(120, classes=3, labels=40)
    far = np.vstack([X, X + 1000.0])
    group = Group(0, "relationships", "err", {"n_neighbors": 4}, ({"max_iter": 1, "tol": 1e-9},))
    evaluate(group, far, np.append(y, np.full(120, -1)))
    with pytest.warns(ConvergenceWarning):
        ERRClassifier(max_iter=1, tol=1e-9).fit(X, y)


def test_a_warm_start_goes_along_rising_lambda2(monkeypatch):
    X, y = moons(200, labels=60)
    solvers = tuple({"sigma_f": 1.3, "lambda1": 1.0, "lambda2": value} for value in (0.1, 0.2, 0.4))
    group = Group(0, "relationships", "err", {}, solvers)
    starts = []
    fit = ERRClassifier.fit

    def noted(self, X, y, sample_weight=None, init=None):
        fitted = fit(self, X, y, sample_weight, init)
        starts.append((self.max_iter, init, fitted.solution_))
        return fitted

    monkeypatch.setattr(ERRClassifier, "fit", noted)
    for warm in (False, True):
        starts.clear()
        evaluate(group, X, y, validation=np.arange(30, 60), n_jobs=1, warm_start=warm)
        irr, *fits = starts
        assert [init is irr[2] for _, init, _ in fits] == [True, not warm, not warm]
        if warm:
            assert all(later[1] is earlier[2] for earlier, later in pairwise(fits))


def test_trials_of_one_graph_solve_irr_once_for_each_lambda1(monkeypatch):
    X, y = moons(200, labels=60)
    solved = []
    fit = ERRClassifier.fit

    def noted(self, *arguments, **more):
        if self.max_iter == 0:
            solved.append(self.lambda1)
        return fit(self, *arguments, **more)

    monkeypatch.setattr(ERRClassifier, "fit", noted)
    tuned = TunedClassifier(trials=20, n_jobs=2).fit(KNNGraph().fit(X), y, validation=np.arange(30, 60))
    tried = [trial.parameters for trial in tuned.results_ if trial.stage == "relationships"]
    assert len({parameters["sigma_f"] for parameters in tried}) > 1
    assert sorted(solved) == sorted({parameters["lambda1"] for parameters in tried})
