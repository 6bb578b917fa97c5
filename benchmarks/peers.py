"""Other libraries' methods on a given graph and given labels, behind one call: ``method(W, few, y) -> classes``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelSpreading

from benchmarks.data import Classes

Method = Callable[[csr_array, Classes, Classes], Classes]
"""Weights, labels (−1: none) and the true classes, which only a method that is given the true shares looks at."""


def graph_methods() -> dict[str, Method]:
    """LabelSpreading and, where it is installed, graphlearning."""
    methods: dict[str, Method] = {"scikit-learn LabelSpreading": spread_labels}
    try:
        from graphlearning import ssl
    except ImportError:
        return methods

    def learner(make: Callable[..., Any], given_shares: bool = False, **settings: Any) -> Method:
        def method(W: csr_array, few: Classes, y: Classes) -> Classes:
            # Its code means matrix products by *, as of scipy's older matrix class.
            shares = {"class_priors": np.bincount(y) / len(y)} if given_shares else {}
            labelled = np.flatnonzero(few >= 0)
            answer = make(csr_matrix(W), **shares, **settings).fit_predict(labelled, few[labelled])
            return np.asarray(answer, dtype=np.int64)

        return method

    return methods | {
        "graphlearning Laplace": learner(ssl.laplace),
        "graphlearning WNLL": learner(ssl.laplace, reweighting="wnll"),
        "graphlearning Poisson": learner(ssl.poisson),
        "graphlearning Poisson, true class shares given": learner(ssl.poisson, given_shares=True),
        "graphlearning Poisson-MBO, true class shares given": learner(ssl.poisson_mbo, given_shares=True),
    }


def spread_labels(W: csr_array, few: Classes, _: Classes) -> Classes:
    """scikit-learn's LabelSpreading on W: the kernel is a call that gives the graph, whatever the points are."""
    model = LabelSpreading(kernel=lambda *_: csr_matrix(W))
    return _spread(model, np.zeros((len(few), 1)), few)


def spread_labels_knn(X: Any, few: Classes) -> Classes:
    """scikit-learn's LabelSpreading with its own graph of 10 neighbours."""
    return _spread(LabelSpreading(kernel="knn", n_neighbors=10), X, few)


def _spread(model: LabelSpreading, X: Any, few: Classes) -> Classes:
    with warnings.catch_warnings():
        # It stops after 30 sweeps, as it comes; points that no label reaches get 0/0.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="sklearn")
        return np.asarray(model.fit(X, few).transduction_, dtype=np.int64)
