"""Small data with a few labels, and the classifiers that the tests hold against each other."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_moons

from homophily import ERRClassifier, IRRClassifier

#: ERR with smooth relationships, which by default need more labels than these sets have.
SmoothERR = partial(ERRClassifier, sharpen=False)
ESTIMATORS = [IRRClassifier, SmoothERR]
both = pytest.mark.parametrize("estimator", ESTIMATORS)


def few(y, labels):
    return np.where(np.arange(len(y)) < labels, y, -1)


def moons(u=200, labels=10, seed=0):
    X, y = make_moons(u, noise=0.1, random_state=seed)
    return X, few(y, labels)


def blobs(u=200, classes=4, labels=40, seed=0, spread=1.5):
    X, y = make_blobs(u, centers=classes, n_features=3, cluster_std=spread, random_state=seed)
    return X, few(y, labels)


def two_parts(u=100, seed=0):
    """Two components, labels in the first only."""
    X, y = moons(u, seed=seed)
    return np.vstack([X, X + 1000.0]), np.append(y, np.full(u, -1))


def new_points(X, m=40, seed=1):
    rng = np.random.default_rng(seed)
    return X[rng.integers(len(X), size=m)] + 0.3 * X.std(axis=0) * rng.normal(size=(m, X.shape[1]))
