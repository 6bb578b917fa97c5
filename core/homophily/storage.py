"""Fitted estimators as plain arrays and a JSON document, and back: nothing is pickled, nothing computed again.

A :class:`State` describes an estimator; where and how it is stored, and checksums, are up to the caller. Its arrays are
the estimator's own, not copies, and a restored estimator keeps those it is given: they may be read-only memory maps.
Small arrays are copied. A graph and its classifiers have separate states, because many classifiers share a graph.

Search structures (a KD-tree, or the centred float32 points of faiss) are built again at the first search. Only the
links of HNSW, which take minutes, are kept, in faiss's own bytes.

What is stored is up to each class: see its ``to_arrays`` and ``from_arrays``. ``FORMAT`` is raised when an older
reader would misread or refuse what is written. A new parameter whose default means the earlier behaviour needs no new
format: a parameter that is not listed has its default.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from homophily.arrays import Floats
from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.graph.knn_graph import KNNGraph
from homophily.state import State, StateReader
from homophily.supervision.labels import class_shares_of
from homophily.tables.preprocessing import Preprocessing

__all__ = [
    "PointLabels",
    "State",
    "classifier_state",
    "fit_arguments",
    "graph_state",
    "labels_of",
    "preprocessing_state",
    "restore_classifier",
    "restore_graph",
    "restore_preprocessing",
]

Classifier = IRRClassifier | ERRClassifier

FORMAT = 1

_CLASSIFIERS: dict[str, type[Classifier]] = {"IRRClassifier": IRRClassifier, "ERRClassifier": ERRClassifier}


class PointLabels(NamedTuple):
    """The class of each labelled point; a point with a soft label is named once for each class that it may be of."""

    points: NDArray[np.int64]
    """The labelled points."""
    classes: NDArray[Any]
    """The class of each of them."""
    weights: Floats
    """The confidence in each label."""
    shares: Floats | None = None
    """The share of the class at its point; None means 1."""


def graph_state(graph: KNNGraph) -> State:
    """Take the state of a fitted graph, with what new points need.

    Parameters
    ----------
    graph : KNNGraph
        The fitted graph.

    Returns
    -------
    State
        Its arrays and document.

    Examples
    --------
    >>> import numpy as np
    >>> graph = KNNGraph(n_neighbors=1).fit(np.array([[0.0], [1.0], [9.0], [10.0]]))
    >>> arrays, document = graph_state(graph)
    >>> document["parameters"]["metric"], arrays["points"].ravel().tolist()
    ('euclidean', [0.0, 1.0, 9.0, 10.0])
    >>> restore_graph(State(arrays, document)).attach([[2.0]])[0].tolist()
    [[1]]
    """
    check_is_fitted(graph)
    return _versioned(graph.to_arrays(), "graph")


def restore_graph(state: State) -> KNNGraph:
    """Restore the graph of a state; a ValueError says what is wrong with the state.

    Parameters
    ----------
    state : State
        What :func:`graph_state` returned, as it is or read back.

    Returns
    -------
    KNNGraph
        The fitted graph.

    Examples
    --------
    >>> restore_graph(graph_state(KNNGraph(n_neighbors=1).fit([[0.0], [1.0], [3.0]]))).n_points
    3
    """
    return KNNGraph.from_arrays(_reader(state, "graph"))


def classifier_state(classifier: Classifier) -> State:
    """Take the state of a fitted classifier, without its graph.

    What new points need is computed now if it was not before (a pass over the graph's edges). The calibration, which
    takes a part of a fit's time, is kept if it is there. A callback is not kept.

    Parameters
    ----------
    classifier : IRRClassifier or ERRClassifier
        The fitted classifier.

    Returns
    -------
    State
        Its arrays and document.

    Examples
    --------
    >>> from homophily import IRRClassifier
    >>> classifier_state(IRRClassifier().fit([[0.0], [1.0], [3.0]] * 4, [0, 1, -1] * 4)).document["estimator"]
    'IRRClassifier'
    """
    check_is_fitted(classifier)
    name = type(classifier).__name__
    if _CLASSIFIERS.get(name) is not type(classifier):
        raise TypeError(f"Only {' and '.join(_CLASSIFIERS)} have a state. Got {name} instead.")
    return _versioned(classifier.to_arrays(), "classifier", estimator=name)


def restore_classifier(state: State, graph: KNNGraph) -> Classifier:
    """Restore the classifier of a state; a ValueError says what does not fit.

    Parameters
    ----------
    state : State
        What :func:`classifier_state` returned, as it is or read back.
    graph : KNNGraph
        The graph that the classifier was fitted on.

    Returns
    -------
    IRRClassifier or ERRClassifier
        The fitted classifier.

    Examples
    --------
    >>> from homophily import IRRClassifier
    >>> classifier = IRRClassifier().fit([[0.0], [1.0], [3.0]] * 4, [0, 1, -1] * 4)
    >>> restore_classifier(classifier_state(classifier), classifier.graph_).n_iter_ == classifier.n_iter_
    True
    """
    check_is_fitted(graph)
    reader = _reader(state, "classifier")
    return _CLASSIFIERS[reader.choice("estimator", *_CLASSIFIERS)].from_arrays(reader, graph)


def preprocessing_state(recipe: Preprocessing) -> State:
    """Take the state of a fitted recipe.

    Parameters
    ----------
    recipe : Preprocessing
        The fitted recipe.

    Returns
    -------
    State
        Its arrays and document.

    Examples
    --------
    >>> preprocessing_state(Preprocessing().fit({"city": ["a", "b"]})).document["categories"]
    {'city': ['a', 'b']}
    """
    check_is_fitted(recipe)
    return _versioned(recipe.to_arrays(), "preprocessing")


def restore_preprocessing(state: State) -> Preprocessing:
    """Restore the recipe of a state; a ValueError says what is wrong with the state.

    Parameters
    ----------
    state : State
        What :func:`preprocessing_state` returned, as it is or read back.

    Returns
    -------
    Preprocessing
        The fitted recipe.

    Examples
    --------
    >>> recipe = restore_preprocessing(preprocessing_state(Preprocessing().fit({"city": ["a", "b"]})))
    >>> recipe.transform({"city": ["b"]}).tolist()
    [[0.0, 1.0]]
    """
    return Preprocessing.from_arrays(_reader(state, "preprocessing"))


def labels_of(classifier: Classifier) -> PointLabels:
    """Return the labels a classifier was fitted on; change them and hand them to :func:`fit_arguments`.

    Parameters
    ----------
    classifier : IRRClassifier or ERRClassifier
        The fitted classifier.

    Returns
    -------
    PointLabels
        The labels.

    Examples
    --------
    >>> from homophily import IRRClassifier
    >>> labels_of(IRRClassifier().fit([[0.0], [1.0], [3.0]] * 4, [0, 1, -1] * 4)).points.tolist()
    [0, 1, 3, 4, 6, 7, 9, 10]
    """
    check_is_fitted(classifier)
    labels = classifier.given_labels_
    points = np.flatnonzero(labels.confidence > 0)
    if not (labels.counts > 0).all():
        raise ValueError("The classifier has a class without a label, which labels of points cannot tell.")
    shares = class_shares_of(labels.targets[points])
    row, index = np.nonzero(shares)
    of_row = points[row].astype(np.int64), labels.classes[index], labels.confidence[points][row]
    return PointLabels(*of_row, None if len(row) == len(points) else shares[row, index])


def fit_arguments(labels: PointLabels, n_points: int) -> tuple[NDArray[Any], Floats]:
    """Make the arguments of ``fit`` from the labels of a few points.

    Parameters
    ----------
    labels : PointLabels
        The labels. With shares, the classes must be positions from 0, and each position must occur.
    n_points : int
        Number of points.

    Returns
    -------
    y : ndarray of shape (n_points,) or (n_points, C)
        Classes, with the value for "unlabelled" of their type; with shares, those of each class.
    sample_weight : ndarray of shape (n_points,)
        Confidence in each label.

    Examples
    --------
    >>> import numpy as np
    >>> y, _ = fit_arguments(PointLabels(np.array([1, 2]), np.array(["b", "a"]), np.ones(2)), 4)
    >>> y.tolist()
    ['', 'b', 'a', '']
    """
    classes = np.asarray(labels.classes)
    if labels.shares is not None:
        y, weights = np.zeros((n_points, int(classes.max()) + 1)), np.ones(n_points)
        y[labels.points, classes], weights[labels.points] = labels.shares, labels.weights
        return y, weights
    unlabelled: dict[str, tuple[Any, Any]] = {
        "i": (-1, classes.dtype),
        "u": (-1, np.int64),
        "f": (np.nan, classes.dtype),
        "U": ("", classes.dtype),
    }
    value, dtype = unlabelled.get(classes.dtype.kind, (None, object))
    y = np.full(n_points, value, dtype=dtype)
    weights = np.ones(n_points)
    y[labels.points], weights[labels.points] = classes, labels.weights
    return y, weights


def _versioned(state: State, kind: str, **entries: Any) -> State:
    arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays.items()}
    return State(arrays, {"format": FORMAT, "kind": kind, **entries, **state.document})


def _reader(state: State, kind: str) -> StateReader:
    reader = StateReader(state, kind)
    version, found = reader.document.get("format"), reader.document.get("kind")
    if version != FORMAT:
        raise ValueError(f"The 'format' of a {kind}'s state must be {FORMAT}. Got {version!r} instead.")
    if found != kind:
        raise ValueError(f"The 'kind' of the state must be {kind!r}. Got {found!r} instead.")
    return reader
