"""Estimators taken apart into arrays and JSON, stored, and put together again: the same answers, bit by bit."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_moons
from sklearn.exceptions import NotFittedError

from homophily import ERRClassifier, IRRClassifier, KNNGraph, UnlabelledComponentsWarning, storage
from homophily.graph import dense_index, sparse_index
from homophily.solve import new_points
from homophily.storage import (
    PointLabels,
    State,
    classifier_state,
    fit_arguments,
    graph_state,
    labels_of,
    restore_classifier,
    restore_graph,
)

from ..patience import COMPUTING_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64"}
FITTED = ("solution_", "offsets_", "class_prior_", "reached_", "transduction_", "classes_")
TOLD = ("energy_", "n_iter_", "n_evaluations_", "engine_", "engine_error_", "engine_gradient_error_", "n_features_in_")


def store(state, folder):
    """Write a state as files and read it back, the arrays as read-only memory maps."""
    folder.mkdir(exist_ok=True)
    for name, array in state.arrays.items():
        assert array.dtype.name in DTYPES
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    (folder / "document.json").write_text(json.dumps(state.document, allow_nan=False))
    return load(folder)


def load(folder):
    arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in folder.glob("*.npy")}
    return State(arrays, json.loads((folder / "document.json").read_text()))


def restored(classifier, folder):
    graph = restore_graph(store(graph_state(classifier.graph_), folder / "graph"))
    return restore_classifier(store(classifier_state(classifier), folder / "classifier"), graph)


def assert_same(a, b):
    """The same bits, kind and shape."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def assert_same_csr(a, b):
    for part in ("data", "indices", "indptr"):
        assert_same(getattr(a, part), getattr(b, part))


def points(u=150, columns=4, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(u, columns)).astype(dtype)


def sparse_points(u, seed=0):
    X = points(u, 40, seed)
    X[np.random.default_rng(seed + 1).random(X.shape) > 0.2] = 0.0
    X[3] = 0.0
    return sparse.csr_array(X)


def distances(u, seed=0):
    return cdist(points(u, 3, seed), points(150, 3))


def listed(u, seed=0):
    D = distances(u, seed)
    rows, columns = np.nonzero(D < 2.0)
    return sparse.csr_array((D[rows, columns], (rows, columns)), shape=D.shape)


def affinity(u, seed=0):
    return np.exp(-(distances(u, seed) ** 2))


#: Parameters, and points by (how many, seed): 150 of seed 0 are fitted.
GRAPHS = {
    "kd-tree": ({"sigma_x": 1.5}, lambda u, seed: points(u, 4, seed)),
    "exact": ({"weights": "self-tuning"}, lambda u, seed: points(u, 12, seed)),
    "float32": ({"weights": "global", "exponent": 1}, lambda u, seed: points(u, 12, seed, np.float32)),
    "cosine": ({"metric": "cosine", "symmetrize": "max"}, lambda u, seed: sparse_points(u, seed).toarray()),
    "regions": ({}, lambda u, seed: points(u, 40, seed) * np.linspace(1, 0, 40) ** 12),
    "regions-float32-cosine": ({"metric": "cosine"}, lambda u, seed: points(u, 10, seed, np.float32)),
    "hnsw": ({}, lambda u, seed: points(u, 10, seed) + 7.0),
    "hnsw-float32-cosine": ({"metric": "cosine"}, lambda u, seed: points(u, 10, seed, np.float32)),
    "sparse": ({"metric": "euclidean", "weights": "fixed", "sigma_x": np.float32(2.0)}, sparse_points),
    "sparse-cosine": ({"metric": "cosine"}, sparse_points),
    "precomputed": ({"metric": "precomputed"}, distances),
    "precomputed-sparse": ({"metric": "precomputed"}, listed),
    "affinity": ({"metric": "affinity"}, affinity),
}
every_graph = pytest.mark.parametrize("kind", GRAPHS)


def make_graph(kind, monkeypatch):
    parameters, data = GRAPHS[kind]
    method = kind.partition("-")[0]
    if method in ("regions", "hnsw"):
        monkeypatch.setattr(dense_index, "choose_method", lambda *_: method)
    graph = KNNGraph(n_neighbors=np.int64(6), **parameters).fit(data(150, 0))
    monkeypatch.undo()
    if method in ("regions", "hnsw"):
        assert graph.index_.method == method
    return graph, data(30, 1)


# -- graphs ------------------------------------------------------------------------------------------------------------


def test_a_graph_stored_before_sparse_points_had_more_neighbours_keeps_its_ten(tmp_path):
    X = sparse.csr_array(np.abs(np.random.default_rng(0).normal(size=(40, 8))))
    state = graph_state(KNNGraph(n_neighbors=10).fit(X))
    again = restore_graph(store(state, tmp_path / "graph"))
    assert again.resolved_params_["n_neighbors"] == again.n_neighbors_ == 10
    assert again.attach(X[:3])[1].shape == (3, 10)


@every_graph
def test_a_restored_graph_is_the_graph(kind, tmp_path, monkeypatch):
    graph, new = make_graph(kind, monkeypatch)
    again = restore_graph(store(graph_state(graph), tmp_path))
    assert vars(again).keys() == vars(graph).keys()
    assert again.get_params() == graph.resolved_params_ == again.resolved_params_
    assert_same_csr(again.W, graph.W)
    assert_same(again.degrees, graph.degrees)
    assert_same(again.component_labels, graph.component_labels)
    assert (again.n_points, again.n_components, again.recall_) == (150, graph.n_components, graph.recall_)
    for power, normalized in ((1, True), (1, False), (2, True)):
        assert_same_csr(again.laplacian(power, normalized), graph.laplacian(power, normalized))
    for a, b in zip(again.attach(new), graph.attach(new), strict=True):
        assert_same(a, b)
    if kind != "affinity":
        assert_same(again.distances_, graph.distances_)
        assert_same(again.indices_, graph.indices_)
        assert_same_csr(again.neighborhoods(9), graph.neighborhoods(9))
    if graph.index_ is not None:
        assert vars(again.index_).keys() >= vars(graph.index_).keys()
        assert (again.index_.recall, again.index_.size) == (graph.index_.recall, 150)


@every_graph
def test_a_classifier_on_a_restored_graph_answers_the_same(kind, tmp_path, monkeypatch):
    graph, new = make_graph(kind, monkeypatch)
    y = np.full(150, -1)
    y[:12] = np.arange(12) % 3
    classifier = ERRClassifier(graph=clone(graph)).fit(graph, y)
    again = restored(classifier, tmp_path)
    np.save(tmp_path / "new.npy", new.toarray() if sparse.issparse(new) else new)
    asked = new if sparse.issparse(new) else np.load(tmp_path / "new.npy", mmap_mode="r")
    assert_same(again.decision_function(asked), classifier.decision_function(new))
    assert_same(again.predict(asked[:1]), classifier.predict(new[:1]))


def test_a_state_can_be_taken_from_a_restored_graph(tmp_path, monkeypatch):
    graph, _ = make_graph("hnsw", monkeypatch)
    first = store(graph_state(graph), tmp_path)
    again = restore_graph(first)
    second = graph_state(again)
    assert second.document == first.document
    assert second.arrays.keys() == first.arrays.keys()
    assert again.index_._built is None
    for name, array in first.arrays.items():
        assert_same(second.arrays[name], array)


def test_the_links_of_hnsw_do_not_hold_the_points_again(monkeypatch):
    monkeypatch.setattr(dense_index, "choose_method", lambda *_: "hnsw")
    small, wide = (graph_state(KNNGraph().fit(points(120, columns))).arrays["links"] for columns in (9, 900))
    assert abs(small.size - wide.size) < 10_000 < 120 * 900 * 4


def test_large_arrays_are_neither_copied_nor_computed_when_restored(tmp_path, monkeypatch):
    classifier = IRRClassifier().fit(*labelled("three"))
    graph = store(graph_state(classifier.graph_), tmp_path / "graph")
    model = store(classifier_state(classifier), tmp_path / "model")
    monkeypatch.setattr(dense_index.DenseIndex, "_searched", None)
    again = restore_classifier(model, restore_graph(graph))
    assert np.shares_memory(again.solution_, model.arrays["solution"])
    assert np.shares_memory(again.reached_, model.arrays["reached"])
    assert np.shares_memory(again.graph_.W.data, graph.arrays["weights_data"])
    assert np.shares_memory(again.graph_.W.indices, graph.arrays["weights_indices"])
    assert np.shares_memory(again.graph_.index_.points, graph.arrays["points"])
    assert type(again.solution_) is np.ndarray


@pytest.mark.parametrize("kind", ["exact", "sparse"])
def test_memory_maps_need_no_kernels_of_their_own(kind, tmp_path, monkeypatch):
    graph, new = make_graph(kind, monkeypatch)
    y = np.where(np.arange(150) < 12, np.arange(150) % 3, -1)
    classifier = ERRClassifier(sharpen=False).fit(graph, y)
    classifier.predict(new)
    kernels = dense_index.dense_distances, sparse_index._sparse_distances, new_points._descend
    compiled = [len(kernel.signatures) for kernel in kernels]
    restored(classifier, tmp_path).predict(new)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


# -- classifiers -------------------------------------------------------------------------------------------------------


def labelled(kind):
    """Points, and labels of the first of them."""
    if kind == "two":
        X, y = make_moons(120, noise=0.1, random_state=0)
    else:
        X, y = make_blobs(120, centers=3, n_features=3, cluster_std=1.5, random_state=0)
    return X, np.where(np.arange(120) < 12, y, -1)


CLASSIFIERS = {
    "irr": (IRRClassifier(), "three"),
    "irr-two": (IRRClassifier(class_prior="estimate", normalized=False), "two"),
    "err": (ERRClassifier(sharpen=False), "three"),
    "err-two": (ERRClassifier(sharpen=False, class_prior=np.array([0.4, 0.6])), "two"),
    "one-vs-rest": (ERRClassifier(multiclass="one-vs-rest", power=1), "three"),
    "sparse": (ERRClassifier(relationship_neighbors=np.int64(5)), "three"),
    "nystrom": (ERRClassifier(engine="nystrom", class_prior=[0.2, 0.3, 0.5]), "three"),
}


@pytest.mark.filterwarnings("ignore::homophily.ApproximationWarning")
@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_restored_classifier_is_the_classifier(kind, calibrated, tmp_path):
    estimator, data = CLASSIFIERS[kind]
    X, y = labelled(data)
    new = X + 0.05
    classifier = copy.deepcopy(estimator).fit(X, y)
    if calibrated:
        classifier.predict_proba(new)
    again = restored(classifier, tmp_path)
    assert type(again) is type(classifier)
    assert vars(again).keys() == vars(classifier).keys()
    for name in FITTED:
        assert_same(getattr(again, name), getattr(classifier, name))
    for name in TOLD:
        assert getattr(again, name) == getattr(classifier, name)
    given, expected = (model.get_params(deep=False) for model in (again, classifier))
    assert np.array_equal(given.pop("class_prior"), expected.pop("class_prior"))
    assert given.pop("graph").get_params() == classifier.graph_.resolved_params_
    del expected["graph"]
    assert given == expected
    assert ("calibration" in again._lazy) == calibrated
    for part in ("targets", "confidence", "class_index", "counts", "classes"):
        assert_same(getattr(again.given_labels_, part), getattr(classifier.given_labels_, part))
    assert_same(again.predict(new), classifier.predict(new))
    assert_same(again.decision_function(new), classifier.decision_function(new))
    assert_same(again.predict_proba(new), classifier.predict_proba(new))
    assert_same(again.label_distributions_, classifier.label_distributions_)
    assert again.score(X[:12], y[:12]) == classifier.score(X[:12], y[:12])


def test_no_pass_over_the_graph_is_left_for_the_first_new_point(tmp_path, monkeypatch):
    X, y = labelled("three")
    again = restored(ERRClassifier(sharpen=False).fit(X, y), tmp_path)
    monkeypatch.setattr(KNNGraph, "laplacian", None)
    monkeypatch.setattr(ERRClassifier, "_new_point_terms", None)
    again.predict(X[:1] + 0.1)


@pytest.mark.parametrize(
    "names",
    [
        np.array(["bird", "ox", "Ångström"]),
        np.array([3, 70_000, 5], dtype=np.int32),
        np.array([1, 2, 200], dtype=np.uint8),
        np.array([0.0, 1.0, 2.0]),
        np.array([True, False]),
    ],
    ids=lambda names: names.dtype.name,
)
def test_classes_come_back_as_they_were_and_can_be_fitted_again(names, tmp_path):
    X, y = labelled("two" if len(names) == 2 else "three")
    some = np.flatnonzero(y >= 0)
    y, _ = fit_arguments(PointLabels(some, names[y[some]], np.ones(len(some))), len(X))
    classifier = IRRClassifier().fit(X, y)
    again = restored(classifier, tmp_path)
    assert_same(again.classes_, classifier.classes_)
    assert again.classes_.dtype.kind == (names.dtype.kind if names.dtype.kind != "u" else "i")
    assert_same(again.transduction_, classifier.transduction_)
    labels = labels_of(again)
    assert_same(labels.points, some)
    refitted = IRRClassifier().fit(again.graph_, *fit_arguments(labels, len(X)))
    assert_same(refitted.solution_, classifier.solution_)
    assert_same(refitted.classes_, classifier.classes_)


def test_classes_that_json_cannot_tell_are_refused():
    X, y = labelled("two")
    classifier = IRRClassifier().fit(X, y.astype(np.longdouble))
    with pytest.raises(ValueError, match="classes of a state must be bool, int, float or str"):
        classifier_state(classifier)


def test_changed_labels_are_fitted_from_the_restored_solution(tmp_path):
    X, y = labelled("three")
    weights = np.linspace(0.5, 2.0, len(X))
    classifier = ERRClassifier(sharpen=False).fit(X, y, sample_weight=weights)
    again = restored(classifier, tmp_path)
    labels = labels_of(again)
    assert_same(labels.weights, weights[:12])
    assert_same(labels.classes, y[:12])
    # The first is withdrawn, the second changed, one more is given.
    changed = PointLabels(
        np.append(labels.points[1:], 50),
        np.append([(labels.classes[1] + 1) % 3, *labels.classes[2:]], 2),
        np.append(labels.weights[1:], 1.0),
    )
    y_new, weights_new = fit_arguments(changed, len(X))
    assert y_new[0] == -1
    warm = ERRClassifier(sharpen=False).fit(again.graph_, y_new, weights_new, init=again.solution_)
    same = ERRClassifier(sharpen=False).fit(classifier.graph_, y_new, weights_new, init=classifier.solution_)
    assert_same(warm.solution_, same.solution_)
    assert_same(again.fit(again.graph_, y).transduction_, ERRClassifier(sharpen=False).fit(X, y).transduction_)


def test_the_sparse_form_is_fitted_on_a_restored_graph(tmp_path):
    X, y = labelled("three")
    classifier = ERRClassifier(relationship_neighbors=5).fit(X, y)
    again = restored(classifier, tmp_path)
    assert_same(again.fit(again.graph_, y).solution_, classifier.solution_)


def test_class_shares_are_kept(tmp_path):
    X, y = labelled("three")
    shares = np.zeros((len(X), 3))
    shares[:12] = np.eye(3)[y[:12]]
    assert_same(labels_of(IRRClassifier().fit(X, shares)).classes, y[:12])
    shares[0] = [0.5, 0.3, 0.2]
    classifier = IRRClassifier().fit(X, shares)
    again = restored(classifier, tmp_path)
    assert_same(again.given_labels_.targets, classifier.given_labels_.targets)
    found = labels_of(again)
    assert_same(found.points, [0, 0, 0, *range(1, 12)])
    assert_same(found.classes[:3], [0, 1, 2])
    np.testing.assert_allclose(found.shares[:3], [0.5, 0.3, 0.2])
    y, weights = fit_arguments(found, len(X))
    np.testing.assert_allclose(y[:12], shares[:12])
    assert_same(weights, np.ones(len(X)))
    shares[:, 2] = 0.0
    with pytest.raises(ValueError, match="a class without a label"):
        labels_of(IRRClassifier().fit(X, shares))


def test_parts_without_a_label_still_get_the_prior(tmp_path):
    X, y = labelled("two")
    with pytest.warns(UnlabelledComponentsWarning):
        classifier = ERRClassifier(sharpen=False).fit(np.vstack([X, X + 1000.0]), np.append(y, np.full(120, -1)))
    again = restored(classifier, tmp_path)
    assert_same(again.reached_, classifier.reached_)
    new = np.vstack([X[:5] + 0.1, X[:5] + 1000.1])
    assert_same(again.predict_proba(new), classifier.predict_proba(new))


def test_the_names_of_columns_are_kept(tmp_path):
    X, y = labelled("two")
    frame = pd.DataFrame(X, columns=["height", "width"])
    classifier = IRRClassifier().fit(frame, y)
    again = restored(classifier, tmp_path)
    assert again.feature_names_in_.tolist() == ["height", "width"]
    assert_same(again.predict(frame), classifier.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"width": "depth"}))


def test_parameters_of_the_graph_are_those_of_its_own_state():
    X, y = labelled("three")
    classifier = ERRClassifier(graph=KNNGraph(n_neighbors=6)).fit(X, y)
    parameters = classifier_state(classifier).document["parameters"]
    assert set(parameters) == set(classifier.get_params(deep=False)) - {"graph", "callback"}
    assert graph_state(classifier.graph_).document["parameters"] == classifier.graph_.resolved_params_


def test_a_state_with_parameters_of_before_is_read():
    X, y = labelled("three")
    classifier = ERRClassifier(graph=KNNGraph(n_neighbors=6), lambda2=0.01).fit(X, y)
    arrays, document = classifier_state(classifier)
    former = {"n_neighbors": 6, "metric": "euclidean", "weights": "local", "sigma_x": None, "precondition": True}
    stored = State(arrays, document | {"parameters": document["parameters"] | former})
    again = restore_classifier(stored, classifier.graph_)
    assert (again.graph.n_neighbors, again.lambda2) == (6, 0.01)
    assert_same(again.predict(X + 0.05), classifier.predict(X + 0.05))


def test_a_callback_is_not_kept(tmp_path):
    X, y = labelled("two")
    again = restored(ERRClassifier(sharpen=False, callback=print).fit(X, y), tmp_path)
    assert again.callback is None


def test_a_fresh_process_gives_the_same_answers(tmp_path, monkeypatch):
    graph, new = make_graph("hnsw", monkeypatch)
    y = np.where(np.arange(150) < 12, np.arange(150) % 3, -1)
    classifier = ERRClassifier(sharpen=False).fit(graph, y)
    store(graph_state(graph), tmp_path / "graph")
    store(classifier_state(classifier), tmp_path / "classifier")
    np.save(tmp_path / "new.npy", new)
    program = """
import json, pathlib, sys
import numpy as np
from homophily.storage import State, restore_classifier, restore_graph

folder = pathlib.Path(sys.argv[1])
def load(name):
    arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in (folder / name).glob("*.npy")}
    return State(arrays, json.loads((folder / name / "document.json").read_text()))
classifier = restore_classifier(load("classifier"), restore_graph(load("graph")))
np.save(folder / "answers.npy", classifier.predict_proba(np.load(folder / "new.npy")))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True, timeout=COMPUTING_SECONDS)
    assert_same(np.load(tmp_path / "answers.npy"), classifier.predict_proba(new))


def test_storage_touches_no_private_attribute():
    """Each stored class owns its format; this module only adds the version."""
    tree = ast.parse(Path(storage.__file__).read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in names if name.startswith("_")} == {"__name__"}


# -- what is no state --------------------------------------------------------------------------------------------------


def test_what_is_not_fitted_has_no_state():
    with pytest.raises(NotFittedError):
        graph_state(KNNGraph())
    with pytest.raises(NotFittedError):
        classifier_state(IRRClassifier())
    with pytest.raises(NotFittedError):
        labels_of(IRRClassifier())


@every_graph
def test_a_graph_with_an_array_missing_or_cut_is_refused(kind, monkeypatch):
    graph, _ = make_graph(kind, monkeypatch)
    arrays, document = graph_state(graph)
    for name, array in arrays.items():
        with pytest.raises(ValueError, match=f"no array '{name}'"):
            restore_graph(State({other: arrays[other] for other in arrays if other != name}, document))
        with pytest.raises(ValueError, match=name.split("_")[0]):
            restore_graph(State(arrays | {name: array.astype("complex")}, document))
        if name != "links":
            with pytest.raises(ValueError, match=name.split("_")[0]):
                restore_graph(State(arrays | {name: array[:-1]}, document))


def test_a_classifier_with_an_array_missing_or_cut_is_refused():
    classifier = ERRClassifier(sharpen=False).fit(*labelled("three"))
    arrays, document = classifier_state(classifier)
    for name, array in arrays.items():
        with pytest.raises(ValueError, match=f"no array '{name}'"):
            restore_classifier(
                State({other: arrays[other] for other in arrays if other != name}, document), classifier.graph_
            )
        with pytest.raises(ValueError, match="label_" if name.startswith("label_") else name):
            restore_classifier(State(arrays | {name: array[:-1]}, document), classifier.graph_)


@pytest.mark.parametrize("key", ["format", "kind", "parameters", "n_points", "n_components", "search", "recall"])
def test_a_graph_without_an_entry_of_its_document_is_refused(key):
    arrays, document = graph_state(KNNGraph().fit(points()))
    with pytest.raises(ValueError, match=key):
        restore_graph(State(arrays, {name: document[name] for name in document if name != key}))


def changed_entry(array, position, value):
    array = array.copy()
    array[position] = value
    return array


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [
        ("weights_indices", 7, 150),
        ("weights_indices", 7, -1),
        ("weights_indices", 1, 149),
        ("weights_indptr", 3, 10**6),
        ("weights_indptr", 3, 0),
        ("weights_indptr", 0, 1),
        ("weights_indptr", -1, 5),
        ("components", 0, 99),
        ("neighbors", (4, 2), 150),
        ("neighbors", (4, 2), -1),
        ("points_indices", 2, 40),
        ("points_indptr", 2, 10**6),
    ],
)
def test_indices_that_lead_nowhere_are_refused(name, position, value):
    arrays, document = graph_state(KNNGraph().fit(sparse_points(150)))
    with pytest.raises(ValueError, match=name if "indptr" not in name else name.replace("indptr", "ind")):
        restore_graph(State(arrays | {name: changed_entry(arrays[name], position, value)}, document))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"format": 2}, "'format' of a graph's state must be 1. Got 2"),
        ({"format": None}, "format"),
        ({"kind": "classifier"}, "'kind' of the state must be 'graph'"),
        ({"n_points": 149}, "shape"),
        ({"n_points": "150"}, "'n_points' of the graph must be int"),
        ({"n_points": True}, "n_points"),
        ({"n_components": 10**15}, "n_components"),
        ({"n_features": 3}, "points"),
        ({"feature_names": ["a"]}, "feature_names"),
        ({"parameters": {"n_neighbors": 0}}, "n_neighbors"),
        ({"parameters": {"neighbours": 5}}, "parameters that KNNGraph does not have: \\['neighbours'\\]"),
        ({"parameters": {"metric": "precomputed"}}, "'kind' of the graph \\(search\\) must be one of"),
        ({"rule": None}, "rule"),
        ({"rule": {"kind": "none"}}, "kind"),
        ({"search": {"kind": "dense", "method": "ball-tree", "depth": 64, "scale": 1.0}}, "method"),
        ({"search": {"kind": "dense", "method": "exact", "depth": 64, "scale": 0.0}}, "scale"),
        ({"search": []}, "search"),
    ],
)
def test_a_graph_whose_document_does_not_fit_is_refused(entry, message):
    arrays, document = graph_state(KNNGraph().fit(points()))
    with pytest.raises(ValueError, match=message):
        restore_graph(State(arrays, document | entry))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"format": 0}, "format"),
        ({"estimator": "Pickle"}, "estimator"),
        ({"n_points": 121}, "graph of 121 points"),
        ({"n_links": 5}, "5 links"),
        ({"classes": {"dtype": "int64", "values": [0, 1]}}, "label_counts"),
        ({"classes": {"dtype": "int64", "values": ["a", "b", "c"]}}, "classes"),
        ({"classes": {"dtype": "int64", "values": [2, 1, 0]}}, "in order"),
        ({"classes": {"dtype": "object", "values": [0, 1, 2]}}, "dtype"),
        ({"classes": {"dtype": "str", "values": ["a"]}}, "classes"),
        ({"parameters": {"lambda1": -1.0}}, "lambda1"),
        ({"parameters": {"callback": "print"}}, "callback"),
        ({"terms": []}, "terms"),
        ({"terms": [{"landmarks": 3}]}, "shape"),
        ({"terms": [3]}, "dict"),
        ({"energy": None}, "energy"),
        ({"engine": 3}, "engine"),
    ],
)
def test_a_classifier_whose_document_does_not_fit_is_refused(entry, message):
    classifier = ERRClassifier(sharpen=False).fit(*labelled("three"))
    arrays, document = classifier_state(classifier)
    with pytest.raises(ValueError, match=message):
        restore_classifier(State(arrays, document | entry), classifier.graph_)


@pytest.mark.parametrize(
    ("name", "value"), [("decided", 3), ("decided", -1), ("label_points", 120), ("label_classes", 3)]
)
def test_a_classifier_with_a_value_out_of_range_is_refused(name, value):
    classifier = IRRClassifier().fit(*labelled("three"))
    arrays, document = classifier_state(classifier)
    with pytest.raises(ValueError, match=f"'{name}' of the classifier must be within"):
        restore_classifier(State(arrays | {name: changed_entry(arrays[name], -1, value)}, document), classifier.graph_)


def test_links_of_hnsw_that_cannot_be_read_are_refused_at_the_first_search(monkeypatch):
    graph, new = make_graph("hnsw", monkeypatch)
    arrays, document = graph_state(graph)
    other = KNNGraph().fit(points(140, 10))
    other.index_.method = "hnsw"
    broken = [arrays["links"][:-40], np.zeros(9, dtype=np.uint8), other.index_.links]
    for links in broken:
        again = restore_graph(State(arrays | {"links": links}, document))
        with pytest.raises(ValueError, match="links of the neighbour index"):
            again.attach(new)
