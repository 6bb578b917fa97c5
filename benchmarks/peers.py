"""Other libraries' methods on a given graph and given labels, behind one call: ``method(W, few, y) -> classes``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from benchmarks.data import Classes

Method = Callable[[csr_array, Classes, Classes], Classes]
"""Weights, labels (−1: none) and the true classes, which only a method that is given the true shares looks at."""


TRUE_SHARES = ", true class shares given"
"""In the name of a method that is told more than the labels."""


def graph_methods() -> dict[str, Method]:
    """scikit-learn's methods and, where it is installed, graphlearning's."""
    methods: dict[str, Method] = {
        "scikit-learn LabelSpreading": spread_labels,
        "scikit-learn LabelPropagation": propagate_labels,
    }
    try:
        from graphlearning import ssl
    except ImportError:
        return methods

    def learner(make: Callable[..., Any], shares_of: Literal["labels", "all"] | None = None, **settings: Any) -> Method:
        def method(W: csr_array, few: Classes, y: Classes) -> Classes:
            # Its code means matrix products by *, as of scipy's older matrix class.
            labelled = np.flatnonzero(few >= 0)
            known = y if shares_of == "all" else few[labelled]
            shares = {} if shares_of is None else {"class_priors": np.bincount(known) / len(known)}
            answer = make(csr_matrix(W), **shares, **settings).fit_predict(labelled, few[labelled])
            return np.asarray(answer, dtype=np.int64)

        return method

    return methods | {
        "graphlearning Laplace": learner(ssl.laplace),
        "graphlearning WNLL": learner(ssl.laplace, reweighting="wnll"),
        "graphlearning Poisson": learner(ssl.poisson),
        "graphlearning p-Laplace": learner(ssl.plaplace),
        # Volumes are a part of these methods: they take shares, the labels' own if nothing better is known.
        "graphlearning Poisson-MBO": learner(ssl.poisson_mbo, "labels"),
        "graphlearning VolumeMBO": learner(ssl.volume_mbo, "labels"),
        f"graphlearning Poisson{TRUE_SHARES}": learner(ssl.poisson, "all"),
        f"graphlearning Poisson-MBO{TRUE_SHARES}": learner(ssl.poisson_mbo, "all"),
        f"graphlearning VolumeMBO{TRUE_SHARES}": learner(ssl.volume_mbo, "all"),
    }


def spread_labels(W: csr_array, few: Classes, _: Classes, alpha: float = 0.2) -> Classes:
    """scikit-learn's LabelSpreading on W: the kernel is a call that gives the graph, whatever the points are."""
    model = LabelSpreading(kernel=lambda *_: csr_matrix(W), alpha=alpha)
    return _spread(model, np.zeros((len(few), 1)), few)


def propagate_labels(W: csr_array, few: Classes, _: Classes) -> Classes:
    """scikit-learn's LabelPropagation on W. As W has no diagonal, a point without neighbours gets 0/0."""
    model = LabelPropagation(kernel=lambda *_: csr_matrix(W))
    return _spread(model, np.zeros((len(few), 1)), few)


def spread_labels_knn(X: Any, few: Classes) -> Classes:
    """scikit-learn's LabelSpreading with its own graph of 10 neighbours."""
    return _spread(LabelSpreading(kernel="knn", n_neighbors=10), X, few)


def _spread(model: LabelSpreading | LabelPropagation, X: Any, few: Classes) -> Classes:
    with warnings.catch_warnings():
        # They stop after 30 or 1,000 sweeps, as they come; points that no label reaches get 0/0.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="sklearn")
        return np.asarray(model.fit(X, few).transduction_, dtype=np.int64)
