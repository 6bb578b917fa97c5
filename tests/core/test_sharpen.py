"""Sharp relationships: the walk, the offsets that tell most, and classifiers that finish with them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.datasets import load_digits, make_blobs

from homophily import ERRClassifier, IRRClassifier, KNNGraph, ParameterError, UnlabelledComponentsWarning
from homophily.arrays import Floats
from homophily.solve import sharpen
from homophily.solve.sharpen import FLOOR, NEARLY_SETTLED, SETTLED, STEPS, Held, LazyWalk, Round, sharp_scores
from homophily.storage import State, classifier_state, restore_classifier
from homophily.supervision import class_shares
from homophily.supervision.class_shares import (
    BALANCE,
    LABEL_WEIGHT,
    LabelEvidence,
    are_stratified,
    informative_offsets,
    nearest_shares,
)

RNG = np.random.default_rng(0)
SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="module")
def digits() -> tuple[KNNGraph, Any]:
    """All of scikit-learn's digits."""
    X, y = load_digits(return_X_y=True)
    return KNNGraph().fit(X), y


def one_of_each(y: Any, seed: int) -> Any:
    """One label of each class; −1 elsewhere."""
    rng, few = np.random.default_rng(seed), np.full(len(y), -1)
    for c in np.unique(y):
        few[rng.choice(np.flatnonzero(y == c))] = c
    return few


@pytest.fixture(scope="module")
def three() -> tuple[KNNGraph, Any, Any]:
    """Three groups of 100, 60 and 30 points (:func:`blobs`), and two labels of each."""
    X, y = blobs()
    few = np.full(len(y), -1)
    for group in range(3):
        few[np.flatnonzero(y == group)[:2]] = group
    return KNNGraph(n_neighbors=6).fit(X), y, few


def blobs() -> tuple[Any, Any]:
    X, y = make_blobs([100, 60, 30], 4, centers=3 * np.eye(3, 4), cluster_std=0.8, random_state=1)
    return X, y


def information(logits: Floats, b: Floats) -> float:
    p = softmax(logits + b, axis=1)
    mean = p.mean(axis=0)
    entropies = -(mean @ np.log(mean)), -np.mean(np.sum(p * np.log(p), axis=1))
    return float(entropies[0] - entropies[1] + BALANCE * np.log(mean).mean())


@pytest.mark.parametrize("classes", [3, 9])
@pytest.mark.parametrize("normalized", [True, False])
def test_a_walk_takes_the_steps_of_the_dense_matrix_and_holds_labels(normalized: bool, classes: int) -> None:
    graph = KNNGraph(n_neighbors=4).fit(RNG.normal(size=(40, 3)))
    shares = RNG.dirichlet(np.ones(classes), size=40)
    held = Held(np.array([3, 7]), np.array([1.0, 0.25]), np.eye(classes)[[1, 2]])
    expected = shares
    for _ in range(5):
        expected = lazy_step(graph) @ expected
        expected[3] = np.eye(classes)[1]
        expected[7] = 0.25 * np.eye(classes)[2] + 0.75 * expected[7]
    walk = LazyWalk(graph.laplacian(normalized=normalized), graph.degrees, normalized)
    # float32
    np.testing.assert_allclose(walk(shares, 5, held), expected, atol=1e-6)


def lazy_step(graph: KNNGraph) -> Floats:
    return (np.eye(graph.n_points) + graph.W.toarray() / graph.degrees[:, None]) / 2


# The rows of 17 labels are computed in blocks of 16 columns and of one.
@pytest.mark.parametrize("rows", [0, 17])
@pytest.mark.parametrize("normalized", [True, False])
def test_surroundings_of_labels_are_shares_without_any_label(normalized: bool, rows: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(sharpen, "MOST_ROWS", rows)
    graph = KNNGraph(n_neighbors=4).fit(RNG.normal(size=(60, 3)))
    held = Held(RNG.permutation(60)[:17], np.ones(17), np.eye(3)[np.arange(17) % 3])
    decided = RNG.integers(0, 3, 60)
    start = np.eye(3)[decided]
    start[held.points] = (graph.W.toarray() / graph.degrees[:, None] @ start)[held.points]
    expected = np.linalg.matrix_power(lazy_step(graph), STEPS) @ start
    walk = LazyWalk(graph.laplacian(normalized=normalized), graph.degrees, normalized)
    found = sharpen.surroundings(walk, graph.degrees, held, 3)(decided)
    np.testing.assert_allclose(np.exp(found) - FLOOR, expected[held.points], atol=1e-5)


def test_only_the_best_start_is_run_to_the_end(digits: Any) -> None:
    graph, y = digits
    changed: list[float] = []

    def follow(state: Any) -> None:
        if isinstance(state, Round):
            changed.append(state.changed)

    ERRClassifier(callback=follow).fit(graph, one_of_each(y, 0))
    nearly = [step for step, share in enumerate(changed) if share < NEARLY_SETTLED]
    # Three starts, and then the last one or two rounds of the best.
    assert 3 <= len(nearly) <= 5
    assert sum(share < SETTLED for share in changed) <= 3
    assert changed[-1] < SETTLED or changed[nearly[-1]] < NEARLY_SETTLED


def test_the_offsets_that_tell_most_are_those_of_a_search_over_a_grid() -> None:
    logits = np.log(RNG.dirichlet([0.5, 0.3, 0.1], size=200) + FLOOR)
    found = informative_offsets(logits, np.zeros(3))
    grid = np.linspace(-4, 4, 33)
    best = max(information(logits, np.array([0.0, a, b])) for a, b in itertools.product(grid, grid))
    assert found.sum() == pytest.approx(0.0, abs=1e-12)
    assert information(logits, found) >= best


def label_evidence(counts: list[int]) -> LabelEvidence:
    own = np.repeat(np.arange(len(counts)), counts)
    return LabelEvidence(RNG.normal(size=(len(own), len(counts))), np.eye(len(counts))[own], np.ones(len(own)))


@pytest.mark.parametrize("counts", [[6, 3, 1], [4, 4, 4]])
def test_offsets_weigh_labels_against_the_information(counts: list[int]) -> None:
    logits = np.log(RNG.dirichlet([0.5, 0.3, 0.1], size=200) + FLOOR)
    labels = label_evidence(counts)

    def value(b: Floats) -> float:
        shift = -np.log(softmax(logits + b, axis=1).mean(axis=0))
        log_p = np.log(softmax(labels.logits + b + shift, axis=1))
        return information(logits, b) + labels.weight * float(log_p[labels.targets == 1].mean())

    found = informative_offsets(logits, np.zeros(3), labels)
    grid = np.linspace(-4, 4, 33)
    assert value(found) >= max(value(np.array([0.0, a, b])) for a, b in itertools.product(grid, grid))


def test_fifty_labels_overrule_balance(digits: Any) -> None:
    graph, y = digits
    is_rare = np.isin(y, (2, 5)).astype(int)
    labelled = np.random.default_rng(0).choice(len(y), 50, replace=False)
    few = np.full(len(y), -1)
    few[labelled] = is_rare[labelled]
    model = IRRClassifier(sharpen=True).fit(graph, few)
    assert model.class_prior_[1] == pytest.approx(is_rare.mean(), abs=0.05)
    assert np.mean(model.transduction_ != is_rare) < 0.05


def test_the_weight_of_labels_grows_with_their_number() -> None:
    few, many = label_evidence([1, 1]), label_evidence([200, 200])
    assert 0 < few.weight < 0.1 * LABEL_WEIGHT
    assert 0.9 * LABEL_WEIGHT < many.weight < LABEL_WEIGHT
    assert are_stratified(few.counts)
    assert not are_stratified(label_evidence([2, 1]).counts)


def test_labels_of_a_kind_that_there_are_too_many_of_count_less() -> None:
    points = np.log(RNG.dirichlet([0.3, 0.3, 0.3], size=1000) + FLOOR)
    certainty = softmax(points, axis=1).max(axis=1)
    own = np.arange(3).repeat(20)
    fair = RNG.choice(1000, 60, replace=False)
    unsure = np.r_[fair[:30], certainty.argsort()[:30]]
    for chosen, least, most in ((fair, 0.8, 1.0), (unsure, 0.3, 0.6)):
        labels = LabelEvidence(points[chosen], np.eye(3)[own], np.ones(60))
        found = labels.as_fair_sample(points, np.zeros(3))
        assert least < np.min(found.factors) <= most
        assert np.max(found.factors) == 1.0
        assert found.weight < labels.weight or chosen is fair
        assert are_stratified(found.counts)
    assert np.all(np.asarray(found.factors)[30:] == np.min(found.factors))


def test_labels_at_borders_do_not_spoil_the_shares(digits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, y = digits
    rng, few = np.random.default_rng(4), np.full(len(y), -1)
    while len(np.unique(few)) < 11:
        chosen = rng.choice(len(y), 50, replace=False)
        few = np.where(np.isin(np.arange(len(y)), chosen), y, -1)
    # From L², these shares depend on it.
    classifier = ERRClassifier(power=2)
    top = np.sort(classifier.fit(graph, few).decision_scores_, axis=1)
    margin = np.where(few >= 0, np.inf, top[:, -1] - top[:, -2])
    asked = margin.argsort(kind="stable")[:30]
    few[asked] = y[asked]
    rest = few == -1

    def error() -> float:
        return float(np.mean(classifier.fit(graph, few).transduction_[rest] != y[rest]))

    mended = error()
    monkeypatch.setattr(class_shares, "EXPECTED", np.inf)
    assert mended < 0.7 * error()


def test_many_labels_chosen_class_by_class_do_not_force_equal_shares(digits: Any) -> None:
    graph, y = digits
    is_rare = np.isin(y, (2, 5)).astype(int)
    rng, few = np.random.default_rng(0), np.full(len(y), -1)
    for c in range(2):
        few[rng.choice(np.flatnonzero(is_rare == c), 60, replace=False)] = c
    model = IRRClassifier().fit(graph, few)
    assert np.mean(model.transduction_ != is_rare) < 0.04


def test_few_labels_are_sharpened_by_default_and_many_are_not(three: Any) -> None:
    graph, y, few = three
    assert ERRClassifier().fit(graph, few).resolved_params_["sharpen"] is True
    many = np.where(np.arange(len(y)) % 3 == 0, y, -1)
    assert ERRClassifier().fit(graph, many).resolved_params_["sharpen"] is False
    assert ERRClassifier(sharpen=True).fit(graph, many).resolved_params_["sharpen"] is True
    assert IRRClassifier().fit(graph, few).resolved_params_["sharpen"] is False


@pytest.mark.parametrize("smooth", [{"lambda2": 1e-3}, {"sigma_f": 1.0}, {"max_iter": 10}, {"engine": "tiles"}])
def test_setting_a_parameter_of_smooth_relationships_keeps_them_smooth(three: Any, smooth: dict[str, Any]) -> None:
    graph, _, few = three
    model = ERRClassifier(**smooth, tol=0.2).fit(graph, few)
    assert model.sharp_shares_ is None
    assert model.n_evaluations_ > 0


def test_classes_that_overlap_are_not_merged() -> None:
    shares = RNG.dirichlet(np.full(6, 3.0), size=2000)
    offsets = informative_offsets(np.log(shares), np.zeros(6))
    decided = np.bincount((np.log(shares) + offsets).argmax(axis=1), minlength=6) / 2000
    assert decided.min() > 0.08


def test_shares_follow_groups_that_are_apart() -> None:
    group = np.repeat([0, 1], [900, 100])
    shares = np.where(group[:, None] == np.arange(2), 0.97, 0.03)
    offsets = informative_offsets(np.log(shares), np.array([-1.0, 1.0]))
    np.testing.assert_array_equal((np.log(shares) + offsets).argmax(axis=1), group)


@pytest.mark.parametrize("classifier", [IRRClassifier, ERRClassifier])
def test_one_label_of_each_digit_is_worth_more_with_sharp_relationships(digits: Any, classifier: Any) -> None:
    graph, y = digits
    draws = [one_of_each(y, seed) for seed in (20, 21)]
    plain, sharp = (
        np.mean([classifier(sharpen=on).fit(graph, few).transduction_ != y for few in draws]) for on in (False, True)
    )
    assert sharp < 0.9 * plain


def test_groups_of_unequal_size_keep_their_sizes(three: Any) -> None:
    graph, y, few = three
    model = IRRClassifier(sharpen=True).fit(graph, few)
    assert np.mean(model.transduction_ == y) > 0.95
    np.testing.assert_allclose(model.class_prior_, np.bincount(y) / len(y), atol=0.05)


@pytest.mark.parametrize(("prior", "shares"), [("balanced", [1 / 3, 1 / 3, 1 / 3]), ([0.6, 0.2, 0.2], [0.6, 0.2, 0.2])])
@pytest.mark.parametrize("sharpen", [False, True])
def test_shares_that_are_given_are_kept(three: Any, prior: Any, shares: list[float], sharpen: bool) -> None:
    graph, _, few = three
    model = IRRClassifier(class_prior=prior, sharpen=sharpen).fit(graph, few)
    decided = np.bincount(model.transduction_, minlength=3) / graph.n_points
    np.testing.assert_allclose(decided, shares, atol=0.05)
    np.testing.assert_allclose(model.class_prior_, shares)


@pytest.mark.parametrize("sharpen", [False, True])
def test_shares_are_inferred_within_bounds(three: Any, sharpen: bool) -> None:
    graph, y, few = three
    free = IRRClassifier(sharpen=sharpen).fit(graph, few)
    wide = IRRClassifier(class_prior=[(0.0, 1.0)] * 3, sharpen=sharpen).fit(graph, few)
    np.testing.assert_array_equal(wide.transduction_, free.transduction_)
    bounds = [(0.0, 0.4), (0.0, 1.0), (0.25, 0.3)]
    narrow = IRRClassifier(class_prior=bounds, sharpen=sharpen).fit(graph, few)
    decided = np.bincount(narrow.transduction_, minlength=3) / len(y)
    for share, (low, high) in zip(decided, bounds, strict=True):
        assert low - 0.05 < share < high + 0.05
    assert np.bincount(free.transduction_)[0] / len(y) > 0.45


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ([(0.2, 0.1), (0, 1), (0, 1)], "low <= high"),
        ([(0, 1), (0, 1)], "3 pairs"),
        ([(0.5, 0.6)] * 3, "sum 1"),
        ([(0, 0.2)] * 3, "sum 1"),
        ([(np.nan, 1.0)] * 3, "low <= high"),
    ],
)
def test_bounds_that_no_shares_can_keep_are_refused(three: Any, bounds: Any, problem: str) -> None:
    graph, _, few = three
    with pytest.raises(ParameterError, match=f"'class_prior' parameter of IRRClassifier.*{problem}"):
        IRRClassifier(class_prior=bounds).fit(graph, few)


def test_the_nearest_shares_within_bounds_are_those_of_a_quadratic_programme() -> None:
    for _ in range(20):
        low = RNG.uniform(0, 0.2, 4)
        bounds = np.column_stack([low, low + RNG.uniform(0.15, 0.5, 4)])
        shares = RNG.dirichlet(np.ones(4))
        found = nearest_shares(shares, bounds)
        sums = {"type": "eq", "fun": lambda x: x.sum() - 1}
        best = minimize(lambda x, s=shares: np.sum((x - s) ** 2), found, bounds=bounds, constraints=sums)
        assert found.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(found, best.x, atol=1e-4)


@pytest.mark.parametrize("classifier", [IRRClassifier(), ERRClassifier()])
def test_shares_come_with_a_range_that_holds_the_truth(three: Any, classifier: Any) -> None:
    graph, y, few = three
    model = classifier.fit(graph, few)
    low, high = model.class_share_range_.T
    assert np.all(low <= high)
    # All but two points: the best answer may have a wrong one at a border.
    true, two = np.bincount(y) / len(y), 2 / len(y)
    assert np.all((low - two <= true) & (true <= high + two))
    assert model.label_distributions_.shape == (len(y), 3)
    assert model.class_share_range_.shape == (3, 2)


def two_classes(three: Any) -> tuple[KNNGraph, Any, Any]:
    graph, y, few = three
    return graph, np.minimum(y, 1), np.minimum(few, 1)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("classifier", [IRRClassifier(sharpen=True), ERRClassifier(sharpen=True)])
def test_scores_probabilities_and_new_points_agree_with_the_classes(three: Any, classifier: Any, classes: int) -> None:
    graph, _, few = three if classes == 3 else two_classes(three)
    model = classifier.fit(graph, few)
    X = blobs()[0]
    np.testing.assert_array_equal(model.predict(X), model.transduction_)
    np.testing.assert_allclose(model.decision_function(X), model.decision_scores_, atol=1e-12)
    np.testing.assert_array_equal(model.label_distributions_.argmax(axis=1), model.transduction_)
    near = model.answer(X + 1e-3, probabilities=True)
    assert np.mean(near.classes == model.transduction_) > 0.97
    np.testing.assert_array_equal(near.probabilities.argmax(axis=1), near.classes)
    np.testing.assert_array_equal(model.transduction_[few >= 0], few[few >= 0])


def test_a_stored_classifier_answers_the_same(three: Any) -> None:
    graph, _, few = three
    model = ERRClassifier(sharpen=True).fit(graph, few)
    arrays, document = classifier_state(model)
    again = restore_classifier(State(arrays, document), graph)
    X = blobs()[0] + 0.05
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.transduction_, model.transduction_)
    with pytest.raises(ValueError, match="has no array 'sharp_shares'"):
        restore_classifier(State({k: v for k, v in arrays.items() if k != "sharp_shares"}, document), graph)


def test_threads_change_no_bit(digits: Any) -> None:
    graph, y = digits
    few = one_of_each(y, 0)
    one, two = (IRRClassifier(sharpen=True, n_jobs=jobs).fit(graph, few) for jobs in (1, 2))
    np.testing.assert_array_equal(one.sharp_shares_, two.sharp_shares_)
    np.testing.assert_array_equal(one.offsets_, two.offsets_)


def test_a_doubtful_label_gives_way_and_a_firm_one_does_not(three: Any) -> None:
    graph, y, few = three
    wrong = np.linalg.norm(blobs()[0] - [3, 0, 0, 0], axis=1).argmin()
    few, weights = few.copy(), np.ones(len(y))
    few[wrong] = 2
    firm = IRRClassifier(sharpen=True).fit(graph, few, sample_weight=weights)
    weights[wrong] = 0.05
    doubtful = IRRClassifier(sharpen=True).fit(graph, few, sample_weight=weights)
    assert firm.transduction_[wrong] == 2
    assert doubtful.transduction_[wrong] == 0


def test_soft_labels_hold_their_shares(three: Any) -> None:
    graph, _, few = three
    soft = np.zeros((len(few), 3))
    soft[few >= 0] = 0.1 + 0.7 * np.eye(3)[few[few >= 0]]
    model = IRRClassifier(sharpen=True).fit(graph, soft)
    np.testing.assert_allclose(model.sharp_shares_[few >= 0], soft[few >= 0], rtol=1e-6)


def test_points_that_no_label_reaches_get_the_most_frequent_class(three: Any) -> None:
    X = np.vstack([blobs()[0], 100 + RNG.normal(size=(20, 4))])
    few = np.append(three[2], np.full(20, -1))
    with pytest.warns(UnlabelledComponentsWarning, match="hold no label"):
        model = IRRClassifier(graph=KNNGraph(n_neighbors=6), sharpen=True).fit(X, few)
    assert not model.sharp_shares_[-20:].any()
    assert set(model.transduction_[-20:]) == {model.classes_[model.class_prior_.argmax()]}


class Cancelled(Exception):
    pass


def test_rounds_are_reported_and_can_be_cancelled(three: Any) -> None:
    graph, _, few = three
    rounds: list[Round] = []

    def follow(state: Any) -> None:
        if isinstance(state, Round):
            rounds.append(state)

    ERRClassifier(sharpen=True, callback=follow).fit(graph, few)
    assert [state.iteration for state in rounds] == list(range(1, len(rounds) + 1))
    assert rounds[-1].changed < SETTLED

    def cancel(state: Any) -> None:
        if isinstance(state, Round):
            raise Cancelled

    model = ERRClassifier(sharpen=True, callback=cancel)
    with pytest.raises(Cancelled):
        model.fit(graph, few)
    assert not hasattr(model, "transduction_")


def test_irr_reports_rounds_as_iterations(three: Any) -> None:
    graph, _, few = three
    seen: dict[bool, list[int]] = {False: [], True: []}
    for on, numbers in seen.items():
        IRRClassifier(sharpen=on, callback=lambda number, _, numbers=numbers: numbers.append(number)).fit(graph, few)
    assert seen[True][: len(seen[False])] == seen[False]
    assert seen[True][len(seen[False]) :] == list(range(1, len(seen[True]) - len(seen[False]) + 1))


def test_log_odds_of_two_classes_are_one_column() -> None:
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    np.testing.assert_allclose(sharp_scores(shares)[:, 0], np.log((shares[:, 1] + FLOOR) / (shares[:, 0] + FLOOR)))


def test_a_sharp_classifier_that_was_stored_earlier_answers_as_it_did(three: Any) -> None:
    with np.load(SAMPLES / "sharp-classifier-1.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    document, answers = json.loads(str(arrays.pop("document"))), arrays.pop("answers")
    model = restore_classifier(State(arrays, document), three[0])
    np.testing.assert_allclose(model.predict_proba(blobs()[0] + 0.05), answers, atol=1e-9)
