"""Fitted estimators as plain arrays and a JSON document, and back: nothing is pickled, nothing computed again.

A :class:`State` says what its estimator holds; where and how it is stored is the caller's business, as are checksums.
Its arrays are the estimator's own, not copies, and a restored estimator keeps those it is given: they may be read-only
memory maps, and nobody writes into them. What is small is copied. A graph and its classifiers have states of their
own, because many classifiers share a graph.

What a search for neighbours needs beside the points is made at the first search: a KD-tree, or the centred float32
points that faiss searches. Only the links of HNSW, which take minutes, are kept, in faiss's own bytes.

:data:`FORMAT` is raised whenever a reader of today would misread, or refuse, what is written. A parameter that is new
and whose default means what was done before needs no new format: parameters not listed have their default.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from homophily.estimators.classifiers import ERRClassifier, IRRClassifier
from homophily.graph.coordinates import Space
from homophily.graph.knn_graph import KNNGraph, _WeightRule
from homophily.graph.neighbors import DenseIndex, SparseIndex
from homophily.solve.new_points import GaussSums, RelationshipTerm
from homophily.supervision.calibration import Calibration
from homophily.supervision.labels import Labels

Classifier = IRRClassifier | ERRClassifier

FORMAT = 1

_CLASSIFIERS = {"IRRClassifier": IRRClassifier, "ERRClassifier": ERRClassifier}
_FLOATS = ("float64", "float32")
_INDICES = ("int32", "int64")
_CLASS_DTYPES = ("bool", "str", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), *_FLOATS)


class State(NamedTuple):
    """A fitted estimator: arrays of bool, int, uint8 or float by name, and the rest in what JSON can hold."""

    arrays: dict[str, NDArray[Any]]
    document: dict[str, Any]


class PointLabels(NamedTuple):
    """One class a labelled point."""

    points: NDArray[np.int64]
    """The labelled points, in ascending order."""
    classes: NDArray[Any]
    weights: NDArray[np.float64]
    """The confidence in each label."""


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph_state(graph: KNNGraph) -> State:
    """The state of a fitted graph, with what new points need.

    >>> import numpy as np
    >>> graph = KNNGraph(n_neighbors=1).fit(np.array([[0.0], [1.0], [9.0], [10.0]]))
    >>> arrays, document = graph_state(graph)
    >>> document["parameters"]["metric"], arrays["points"].ravel().tolist()
    ('euclidean', [0.0, 1.0, 9.0, 10.0])
    >>> restore_graph(State(arrays, document)).attach([[2.0]])[0].tolist()
    [[1]]
    """
    check_is_fitted(graph)
    arrays = {"degrees": graph.degrees, "components": graph.component_labels, **_csr_arrays("weights", graph.W)}
    document = {
        "format": FORMAT,
        "kind": "graph",
        "parameters": _plain(graph.get_params(deep=False)),
        "n_points": graph.n_points,
        "n_components": graph.n_components,
        "recall": float(graph.recall_),
        "search": {"kind": "none"},
        "rule": None,
        **_features(graph),
    }
    if graph.distances_ is not None and graph.indices_ is not None:
        arrays |= {"distances": graph.distances_, "neighbors": graph.indices_, "reach": graph._reach}
        document["rule"] = _plain(vars(graph._rule))
    if graph._space is not None:
        arrays |= {f"space_{name}": array for name, array in graph._space._asdict().items()}
    search = graph.index_ if graph.index_ is not None else graph._listed
    if isinstance(search, DenseIndex):
        arrays |= {"points": search.points, "centre": search._centre}
        if search.method == "hnsw":
            arrays["links"] = search.links
        depth = int(search._depth)
        document["search"] = {"kind": "dense", "method": search.method, "depth": depth, "scale": search._scale}
    elif isinstance(search, SparseIndex):
        arrays |= _csr_arrays("points", search.points)
        document["search"] = {"kind": "sparse", "scale": search._scale}
    elif isinstance(search, np.ndarray):
        arrays["listed"] = search
        document["search"] = {"kind": "listed"}
    elif search is not None:
        arrays |= _csr_arrays("listed", search)
        document["search"] = {"kind": "listed-sparse"}
    return State({name: np.ascontiguousarray(array) for name, array in arrays.items()}, document)


def restore_graph(state: State) -> KNNGraph:
    """The graph of a state; a ValueError says what is wrong with a state that is none."""
    reader = _Reader(state, "graph")
    graph = KNNGraph(**reader.parameters(KNNGraph))
    graph._validate_params()
    u = reader.whole("n_points", 1)
    n_components = reader.whole("n_components", 1, most=u)
    reader.features(graph)
    graph.recall_ = reader.number("recall")
    graph._degrees = reader.array("degrees", (u,))
    graph._n_components = n_components
    graph._component_labels = reader.positions("components", (u,), n_components, ("int32",))
    graph._W = sparse.csr_array(reader.csr("weights", u, u), shape=(u, u))
    _check_canonical(graph._W, "weights")
    graph.distances_ = graph.indices_ = graph.index_ = graph._listed = None
    graph._laplacians, graph._neighborhoods, graph._space = {}, {}, None
    if reader.document.get("rule") is not None:
        graph.distances_ = reader.array("distances", (u, None))
        graph._n_found = graph.distances_.shape[1]
        graph.indices_ = reader.positions("neighbors", graph.distances_.shape, u, ("int32",))
        graph._reach = reader.array("reach", (u,))
        rule = reader.section("rule")
        kind, exponent = rule.choice("kind", "local", "self-tuning", "global", "fixed"), rule.whole("exponent", 1)
        # Graphs of before it was thought of have none.
        factor = rule.number("factor") if "factor" in rule.document else 1.0
        graph._rule = _WeightRule(kind, exponent, rule.number("width"), rule.number("typical"), factor)
    wanted = {"affinity": ["none"], "precomputed": ["listed", "listed-sparse"]}.get(graph.metric, ["dense", "sparse"])
    search = reader.section("search")
    kind = search.choice("kind", *wanted)
    if (graph.distances_ is None) != (kind == "none"):
        raise ValueError(f"A graph's state with metric={graph.metric!r} does not fit its rule of weights.")
    if kind == "listed":
        graph._listed = reader.array("listed", (u, u), _FLOATS)
    elif kind == "listed-sparse":
        graph._listed = sparse.csr_array(reader.csr("listed", u, u, _FLOATS), shape=(u, u))
    elif kind != "none":
        columns = int(graph.n_features_in_)
        if graph.space != "input":
            origin = reader.array("space_origin", (columns,))
            graph._space = Space(origin, reader.array("space_directions", (columns, None)))
            columns = graph._space.directions.shape[1]
        # A row of zeros has a direction of its own, one column more, for the cosine.
        columns += graph.metric == "cosine"
        index = _restored_index(reader, search, kind, u, columns)
        index.metric, index.n_jobs, index.recall = graph.metric, graph.n_jobs, graph.recall_
        graph.index_ = index
    return graph


def _restored_index(reader: _Reader, search: _Reader, kind: str, size: int, columns: int) -> Any:
    # Not by the constructor, which would prepare and measure the points again.
    index: Any
    if kind == "dense":
        index = DenseIndex.__new__(DenseIndex)
        index._points = reader.array("points", (size, columns), _FLOATS)
        index._dtype = index._points.dtype.type
        index._centre = reader.array("centre", (columns,))
        index.method = search.choice("method", "kd-tree", "exact", "hnsw")
        index._depth = search.whole("depth", 1)
        if index.method == "hnsw":
            index._links = reader.array("links", (None,), ("uint8",))
    else:
        index = SparseIndex.__new__(SparseIndex)
        # The older matrix class, as in SparseIndex.
        index._points = sparse.csr_matrix(reader.csr("points", size, columns), shape=(size, columns))
        _check_canonical(index._points, "points")
    index.size = size
    index._scale = search.number("scale")
    if not 0 < index._scale < np.inf:
        raise ValueError(f"The 'scale' of a graph's state must be positive and finite. Got {index._scale} instead.")
    index._built = None
    return index


# -- classifiers -------------------------------------------------------------------------------------------------------


def classifier_state(classifier: Classifier) -> State:
    """The state of a fitted classifier without its graph.

    What new points need is made now if it was not before (a pass over the graph's edges), so that no later process
    has to. The calibration, which is as dear as five fits, is kept if it is there. A callback is not kept.
    """
    check_is_fitted(classifier)
    name = type(classifier).__name__
    if _CLASSIFIERS.get(name) is not type(classifier):
        raise TypeError(f"Only {' and '.join(_CLASSIFIERS)} have a state. Got {name} instead.")
    labels = classifier._labels
    points = np.flatnonzero(labels.confidence > 0)
    arrays = {
        "solution": classifier.solution_,
        "offsets": classifier.offsets_,
        "class_prior": classifier.class_prior_,
        "reached": classifier.reached_,
        "decided": np.searchsorted(classifier.classes_, classifier.transduction_).astype(np.int32),
        "label_points": points,
        "label_targets": labels.targets[points],
        "label_confidence": labels.confidence[points],
        "label_classes": labels.class_index[points].astype(np.int64),
        "label_counts": labels.counts,
    }
    if "terms" not in classifier._lazy:
        classifier._lazy["terms"] = classifier._new_point_terms()
    terms: tuple[RelationshipTerm | None, ...] = classifier._lazy["terms"]
    calibration: Calibration | None = classifier._lazy.get("calibration")
    error = classifier.engine_error_
    # What was searched is stored as if it had been given.
    parameters = classifier.get_params(deep=False) | classifier.__dict__.get("chosen_", {})
    del parameters["callback"], parameters["search"]
    document = {
        "format": FORMAT,
        "kind": "classifier",
        "estimator": name,
        "parameters": _plain(parameters),
        "n_points": classifier.graph_.n_points,
        "n_links": int(classifier.graph_.W.nnz),
        "classes": _class_list(classifier.classes_),
        "energy": float(classifier.energy_),
        "n_iter": int(classifier.n_iter_),
        "n_evaluations": int(classifier.n_evaluations_),
        "engine": classifier.engine_,
        "engine_error": None if error is None else float(error),
        "calibration_slope": None if calibration is None else float(calibration.slope),
        "terms": [None if term is None else _term_numbers(term) for term in terms],
        **_features(classifier),
    }
    sums = [term.sums for term in terms if term is not None]
    if sums:
        arrays |= {f"term_{part}": np.concatenate([getattr(one, part) for one in sums]) for part in GaussSums._fields}
    return State({name: np.ascontiguousarray(array) for name, array in arrays.items()}, document)


def restore_classifier(state: State, graph: KNNGraph) -> Classifier:
    """The classifier of a state, on the graph it was fitted on; a ValueError says what does not fit."""
    check_is_fitted(graph)
    reader = _Reader(state, "classifier")
    estimator = _CLASSIFIERS[reader.choice("estimator", *_CLASSIFIERS)]
    classifier: Classifier = estimator(**reader.parameters(estimator))
    classifier._validate_params()
    u = reader.whole("n_points", 1)
    if (u, reader.whole("n_links", 0)) != (graph.n_points, graph.W.nnz):
        raise ValueError(
            f"The state is of a classifier on a graph of {u} points and {reader.whole('n_links', 0)} links. "
            f"Got a graph of {graph.n_points} points and {graph.W.nnz} links instead."
        )
    reader.features(classifier)
    classes = _read_classes(reader)
    n = 1 if len(classes) == 2 else len(classes)
    classifier.graph_ = graph
    classifier.classes_ = classes
    classifier.class_prior_ = reader.small("class_prior", (len(classes),))
    classifier.offsets_ = reader.small("offsets", (n,))
    classifier.solution_ = reader.array("solution", (u, n))
    classifier.reached_ = reader.array("reached", (u,), ("bool",))
    classifier._labels = _read_labels(reader, classes, u, n)
    classifier.energy_ = reader.number("energy")
    classifier.n_iter_, classifier.n_evaluations_ = reader.whole("n_iter", 0), reader.whole("n_evaluations", 0)
    classifier.engine_ = reader.value("engine", str, type(None))
    classifier.engine_error_ = reader.value("engine_error", float, int, type(None))
    classifier._lazy = {"terms": _read_terms(reader, n)}
    slope = reader.value("calibration_slope", float, int, type(None))
    if slope is not None:
        classifier._lazy["calibration"] = Calibration(float(slope), classifier.offsets_)
    classifier.transduction_ = classes[reader.positions("decided", (u,), len(classes), ("int32",))]
    return classifier


def labels_of(classifier: Classifier) -> PointLabels:
    """The labels a classifier was fitted on; change them and hand them to :func:`fit_arguments`.

    Class shares, which are no single class, are refused with a ValueError.
    """
    check_is_fitted(classifier)
    labels: Labels = classifier._labels
    points = np.flatnonzero(labels.confidence > 0)
    index = labels.class_index[points]
    hard = np.eye(len(labels.classes))[index] if labels.targets.shape[1] > 1 else 2.0 * index[:, None] - 1.0
    if not np.array_equal(labels.targets[points], hard) or not (labels.counts > 0).all():
        raise ValueError("The classifier was fitted on class shares, which are not one class a point.")
    return PointLabels(points.astype(np.int64), labels.classes[index], labels.confidence[points])


def fit_arguments(labels: PointLabels, n_points: int) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """``y`` and ``sample_weight`` for ``fit``, from the labels of a few points.

    >>> import numpy as np
    >>> y, _ = fit_arguments(PointLabels(np.array([1, 2]), np.array(["b", "a"]), np.ones(2)), 4)
    >>> y.tolist()
    ['', 'b', 'a', '']
    """
    classes = np.asarray(labels.classes)
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


def _term_numbers(term: RelationshipTerm) -> dict[str, Any]:
    numbers = {name: float(value) for name, value in term._asdict().items() if name != "sums"}
    return numbers | {"landmarks": len(term.sums.landmarks)}


def _read_terms(reader: _Reader, n: int) -> tuple[RelationshipTerm | None, ...]:
    terms = reader.value("terms", list)
    if len(terms) not in (1, n):
        raise ValueError(f"The 'terms' of a classifier's state must be 1 or {n}. Got {len(terms)} instead.")
    if terms == [None]:
        return (None,)
    sections = [_Reader(State(reader.arrays, term), f"term {i}", None) for i, term in enumerate(terms)]
    counts = [section.whole("landmarks", 1) for section in sections]
    m = sum(counts)
    # Copies, as they are small: kernels are compiled for arrays that may be written to.
    landmarks = reader.small("term_landmarks", (m, n // len(terms)))
    stored, edges = reader.small("term_stored", (m,)), reader.small("term_edges", (m,))
    ends = np.cumsum(counts)
    restored = []
    for section, count, end in zip(sections, counts, ends, strict=True):
        part = slice(end - count, end)
        numbers = {name: section.number(name) for name in RelationshipTerm._fields if name != "sums"}
        restored.append(RelationshipTerm(**numbers, sums=GaussSums(landmarks[part], stored[part], edges[part])))
    return tuple(restored)


def _read_labels(reader: _Reader, classes: NDArray[Any], u: int, n: int) -> Labels:
    points = reader.positions("label_points", (None,), u, ("int64",))
    if not (np.diff(points) > 0).all():
        raise ValueError("The array 'label_points' of a classifier's state must be in ascending order.")
    shape = points.shape
    targets, confidence, index = np.zeros((u, n)), np.zeros(u), np.full(u, -1, dtype=np.intp)
    targets[points] = reader.array("label_targets", (*shape, n))
    confidence[points] = reader.array("label_confidence", shape)
    index[points] = reader.positions("label_classes", shape, len(classes), ("int64",))
    return Labels(classes, targets, confidence, index, reader.small("label_counts", (len(classes),)))


def _class_list(classes: NDArray[Any]) -> dict[str, Any]:
    name = "str" if classes.dtype.kind == "U" else classes.dtype.name
    if name not in _CLASS_DTYPES:
        raise ValueError(f"The classes of a state must be bool, int, float or str. Got {classes.dtype} instead.")
    return {"dtype": name, "values": classes.tolist()}


def _read_classes(reader: _Reader) -> NDArray[Any]:
    section = reader.section("classes")
    values, dtype = section.value("values", list), section.choice("dtype", *_CLASS_DTYPES)
    try:
        classes = np.array(values, dtype=dtype)
        fits = classes.ndim == 1 and classes.size > 1 and classes.tolist() == values
        fits = fits and bool((classes[:-1] < classes[1:]).all())
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(
            f"The 'classes' of a classifier's state must be two or more {dtype} in order. Got {values} instead."
        )
    return classes


# -- reading and writing -----------------------------------------------------------------------------------------------


class _Reader:
    """What a state should hold, or a ValueError that says what it does not."""

    def __init__(self, state: State, kind: str, written: int | None = FORMAT):
        self.arrays, self.document = state
        self.kind = kind
        if not isinstance(self.document, dict):
            raise ValueError(f"The document of a {kind} must be a dict. Got {type(self.document).__name__} instead.")
        if written is not None and self.document.get("format") != written:
            raise ValueError(
                f"The 'format' of a {kind}'s state must be {written}. Got {self.document.get('format')!r} instead."
            )
        if written is not None and self.document.get("kind") != kind:
            raise ValueError(f"The 'kind' of the state must be {kind!r}. Got {self.document.get('kind')!r} instead.")

    def section(self, name: str) -> _Reader:
        return _Reader(State(self.arrays, self.value(name, dict)), f"{self.kind} ({name})", None)

    def value(self, name: str, *types: type) -> Any:
        if name not in self.document:
            raise ValueError(f"The document of the {self.kind} has no {name!r}.")
        value = self.document[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
            raise ValueError(f"The {name!r} of the {self.kind} must be {expected}. Got {value!r} instead.")
        return value

    def number(self, name: str) -> float:
        return float(self.value(name, float, int))

    def whole(self, name: str, least: int, most: int = 2**62) -> int:
        value: int = self.value(name, int)
        if not least <= value <= most:
            raise ValueError(f"The {name!r} of the {self.kind} must be {least} to {most}. Got {value} instead.")
        return value

    def choice(self, name: str, *choices: str) -> str:
        value: str = self.value(name, str)
        if value not in choices:
            raise ValueError(f"The {name!r} of the {self.kind} must be one of {choices}. Got {value!r} instead.")
        return value

    def parameters(self, estimator: Any) -> dict[str, Any]:
        parameters: dict[str, Any] = self.value("parameters", dict)
        unknown = sorted(set(parameters) - (set(estimator().get_params()) - {"callback"}))
        if unknown:
            raise ValueError(f"The {self.kind} has parameters that {estimator.__name__} does not have: {unknown}.")
        return parameters

    def features(self, estimator: Any) -> None:
        """Set what scikit-learn remembers of the columns of ``fit``."""
        estimator.n_features_in_ = self.whole("n_features", 0)
        names = self.value("feature_names", list, type(None))
        if names is None:
            return
        if len(names) != estimator.n_features_in_ or not all(isinstance(name, str) for name in names):
            raise ValueError(f"The 'feature_names' of the {self.kind} must be {estimator.n_features_in_} strings.")
        estimator.feature_names_in_ = np.array(names, dtype=object)

    def array(self, name: str, shape: tuple[int | None, ...], dtypes: tuple[str, ...] = ("float64",)) -> NDArray[Any]:
        """An array as it is; copied only if it lies in memory as no ``State`` of ours would."""
        if name not in self.arrays:
            raise ValueError(f"The {self.kind} has no array {name!r}.")
        array = self.arrays[name]
        if not isinstance(array, np.ndarray) or array.dtype not in [np.dtype(kind) for kind in dtypes]:
            kind = getattr(array, "dtype", type(array).__name__)
            raise ValueError(
                f"The array {name!r} of the {self.kind} must be {' or '.join(dtypes)}. Got {kind} instead."
            )
        if len(array.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
            expected = tuple("any" if n is None else n for n in shape)
            raise ValueError(
                f"The array {name!r} of the {self.kind} must have the shape {expected}. Got {array.shape} instead."
            )
        return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED", "ENSUREARRAY"])

    def small(self, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float64]:
        return self.array(name, shape).copy()

    def positions(
        self, name: str, shape: tuple[int | None, ...], most: int, dtypes: tuple[str, ...] = _INDICES
    ) -> NDArray[Any]:
        """Integers from 0 to ``most`` - 1."""
        array = self.array(name, shape, dtypes)
        if array.size and (array.min() < 0 or array.max() >= most):
            raise ValueError(
                f"The array {name!r} of the {self.kind} must be within 0 and {most - 1}. "
                f"Got {array.min()} to {array.max()} instead."
            )
        return array

    def csr(
        self, name: str, rows: int, columns: int, dtypes: tuple[str, ...] = ("float64",)
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The parts of a CSR matrix that no access through them can leave."""
        data = self.array(f"{name}_data", (None,), dtypes)
        indices = self.positions(f"{name}_indices", data.shape, columns)
        indptr = self.positions(f"{name}_indptr", (rows + 1,), len(data) + 1)
        if indptr[0] != 0 or indptr[-1] != len(data) or not (np.diff(indptr) >= 0).all():
            raise ValueError(f"The array '{name}_indptr' of the {self.kind} must rise from 0 to {len(data)}.")
        return data, indices, indptr


def _check_canonical(matrix: Any, name: str) -> None:
    if not matrix.has_canonical_format:
        raise ValueError(f"The array '{name}_indices' of the graph must rise within each row.")


def _csr_arrays(name: str, matrix: Any) -> dict[str, NDArray[Any]]:
    return {f"{name}_data": matrix.data, f"{name}_indices": matrix.indices, f"{name}_indptr": matrix.indptr}


def _features(estimator: Any) -> dict[str, Any]:
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "n_features": int(estimator.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them: NumPy's numbers as Python's, a class prior as a list."""
    return {
        name: value if value is None or isinstance(value, str | bool | int | float) else np.asarray(value).tolist()
        for name, value in values.items()
    }
