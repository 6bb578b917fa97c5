"""Fitted classifiers as arrays and a document, without their graph, and back."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from homophily.arrays import Floats
from homophily.estimators.graph_estimator import GraphEstimator
from homophily.graph.knn_graph import KNNGraph
from homophily.solve.new_points import RelationshipTerm
from homophily.state import State, StateReader, feature_entries, plain
from homophily.supervision.calibration import Calibration
from homophily.supervision.labels import Labels

#: Parameters of classifiers in earlier releases: those of the graph, and one that was removed.
_FORMER_PARAMETERS = frozenset(KNNGraph().get_params()) - {"backend", "n_jobs"} | {"precondition"}


class StoredClassifier(GraphEstimator):
    """The part of a classifier that stores it: what a fit leaves, and how it is written and read."""

    graph_: KNNGraph
    given_labels_: Labels
    classes_: NDArray[Any]
    class_prior_: Floats
    offsets_: Floats
    solution_: Floats
    reached_: NDArray[np.bool_]
    transduction_: NDArray[Any]
    sharp_shares_: NDArray[np.float32] | None
    energy_: float
    n_iter_: int
    n_evaluations_: int
    engine_: str | None
    engine_error_: float | None
    engine_gradient_error_: float | None

    @property
    def _is_sharp(self) -> bool:
        raise NotImplementedError

    def _terms(self) -> tuple[RelationshipTerm | None, ...]:
        raise NotImplementedError

    def to_arrays(self) -> State:
        """The fitted classifier as arrays, without its graph; see :func:`homophily.storage.classifier_state`."""
        labels, terms = self.given_labels_.to_arrays(), RelationshipTerm.to_arrays(self._terms())
        calibration: Calibration | None = self._lazy.get("calibration")
        arrays = {
            "solution": self.solution_,
            "offsets": self.offsets_,
            "class_prior": self.class_prior_,
            "reached": self.reached_,
            "decided": np.searchsorted(self.classes_, self.transduction_).astype(np.int32),
        }
        if self.sharp_shares_ is not None:
            arrays["sharp_shares"] = self.sharp_shares_
        parameters = self.get_params(deep=False)
        del parameters["callback"], parameters["graph"]
        document = {
            "parameters": plain(parameters),
            "n_points": self.graph_.n_points,
            "n_links": int(self.graph_.W.nnz),
            "energy": float(self.energy_),
            "n_iter": int(self.n_iter_),
            "n_evaluations": int(self.n_evaluations_),
            "engine": self.engine_,
            "engine_error": None if self.engine_error_ is None else float(self.engine_error_),
            "engine_gradient_error": None
            if self.engine_gradient_error_ is None
            else float(self.engine_gradient_error_),
            "calibration_slope": None if calibration is None else float(calibration.slope),
            **feature_entries(self),
        }
        return State(arrays | labels.arrays | terms.arrays, document | labels.document | terms.document)

    @classmethod
    def from_arrays(cls, stored: StateReader, graph: KNNGraph) -> Self:
        """The classifier on ``graph`` whose :meth:`to_arrays` is stored."""
        # Older files lack `sharpen`, which was off.
        parameters = {"sharpen": False} | stored.parameters(cls, _FORMER_PARAMETERS)
        if "sharp_shares" in stored.arrays and parameters["sharpen"] == "auto":
            # Older files have the former default, which sharp relationships do not use.
            parameters.pop("multiclass", None)
        classifier = cls(**parameters, graph=clone(graph))
        classifier._validate_params()
        u, links = stored.integer("n_points", 1), stored.integer("n_links", 0)
        if (u, links) != (graph.n_points, graph.W.nnz):
            raise ValueError(
                f"The state is of a classifier on a graph of {u} points and {links} links. "
                f"Got a graph of {graph.n_points} points and {graph.W.nnz} links instead."
            )
        stored.features(classifier)
        labels = Labels.from_arrays(stored, u)
        classes, n = labels.classes, labels.targets.shape[1]
        classifier.graph_, classifier.given_labels_, classifier.classes_ = graph, labels, classes
        classifier.class_prior_ = stored.copy("class_prior", classes.shape)
        classifier.offsets_ = stored.copy("offsets", (n,))
        classifier.solution_ = stored.array("solution", (u, n))
        classifier.reached_ = stored.array("reached", (u,), ("bool",))
        classifier.sharp_shares_ = None
        if classifier._is_sharp:
            classifier.sharp_shares_ = stored.array("sharp_shares", (u, len(classes)), ("float32",))
        classifier.energy_ = stored.number("energy")
        classifier.n_iter_ = stored.integer("n_iter", 0)
        classifier.n_evaluations_ = stored.integer("n_evaluations", 0)
        classifier.engine_ = stored.value("engine", str, type(None))
        classifier.engine_error_ = stored.value("engine_error", float, int, type(None))
        # Older files lack it.
        is_known = "engine_gradient_error" in stored.document
        gradient_error = stored.value("engine_gradient_error", float, int, type(None)) if is_known else None
        classifier.engine_gradient_error_ = gradient_error
        classifier._lazy = {"terms": RelationshipTerm.from_arrays(stored, n)}
        slope = stored.value("calibration_slope", float, int, type(None))
        if slope is not None:
            classifier._lazy["calibration"] = Calibration(float(slope), classifier.offsets_)
        classifier.transduction_ = classes[stored.positions("decided", (u,), len(classes), ("int32",))]
        return classifier

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "_lazy" in state:
            # The columns are copies of the solution's.
            state["_lazy"] = {name: made for name, made in state["_lazy"].items() if name != "columns"}
        return state
