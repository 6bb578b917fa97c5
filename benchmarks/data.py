"""The real data sets by name, and stand-ins drawn at random for runs without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Classes = NDArray[np.int64]

DEFAULTS_SETS = ("ssl_usps", "ssl_text", "ssl_bci", "pcmac", "ccat", "gcat")
UNUSED_SETS = ("ssl_digit1", "ssl_coil2", "ssl_g241c", "ssl_g241n")


class DataSet(NamedTuple):
    """Points and their classes 0 … C−1."""

    name: str
    X: Any
    y: Classes

    @property
    def metric(self) -> Literal["euclidean", "cosine"]:
        """Cosine for text, which is sparse."""
        return "euclidean" if isinstance(self.X, np.ndarray) else "cosine"


def read(folder: Path, name: str) -> DataSet:
    """A set in its ``.npz`` archive: ``X`` and ``y``, or the arrays of a CSR matrix and ``y``."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as archive:
        classes = np.unique(archive["y"], return_inverse=True)[1].astype(np.int64)
        if "X" in archive:
            X = archive["X"]
            return DataSet(name, X.astype(np.float32) if X.dtype == np.uint8 else X, classes)
        parts = archive["data"].astype(np.float64), archive["indices"], archive["indptr"]
        return DataSet(name, csr_array(parts, shape=tuple(archive["shape"])), classes)


def usps(folder: Path | None, points: int = 1500) -> DataSet:
    """1,500 digits, {2, 5} against the rest."""
    if folder is not None:
        return read(folder, "ssl_usps")
    return two_and_five("drawn digits", *manifolds(points, seed=1))


def mnist(folder: Path | None, points: int = 60_000) -> DataSet:
    """60,000 digits, {2, 5} against the rest; fewer when fewer are asked for."""
    if folder is None:
        return two_and_five("drawn digits", *manifolds(points, seed=2))
    whole = read(folder, "mnist")
    chosen = np.random.default_rng(0).permutation(len(whole.y))[:points] if points < len(whole.y) else slice(None)
    return two_and_five("mnist", whole.X[chosen], whole.y[chosen])


def default_sets(folder: Path | None) -> list[DataSet]:
    """The sets that the default parameters are judged on."""
    if folder is not None:
        return [read(folder, name) for name in DEFAULTS_SETS]
    from sklearn.datasets import load_breast_cancer, load_digits, make_moons  # takes a second, for few of the sets

    digits = load_digits(return_X_y=True)
    sets = [two_and_five("digits {2, 5}", *digits)]
    for one, other in ((3, 8), (1, 7)):
        pair = np.isin(digits[1], (one, other))
        sets.append(DataSet(f"digits {one}-{other}", digits[0][pair], (digits[1][pair] == one).astype(np.int64)))
    X, y = load_breast_cancer(return_X_y=True)
    sets.append(DataSet("breast cancer", (X - X.mean(axis=0)) / X.std(axis=0), y.astype(np.int64)))
    sets.append(DataSet("two moons", *make_moons(1000, noise=0.15, random_state=0)))
    return sets


def unused_sets(folder: Path | None) -> list[DataSet]:
    """Sets that no default was chosen on; none without the folder."""
    return [] if folder is None else [read(folder, name) for name in UNUSED_SETS]


def two_and_five(name: str, X: Any, digits: Any) -> DataSet:
    """Class 1 for the digits 2 and 5, class 0 for the rest."""
    return DataSet(name, X, np.isin(digits, (2, 5)).astype(np.int64))


def manifolds(points: int, seed: int, classes: int = 10, dimensions: int = 40) -> tuple[NDArray[np.float32], Classes]:
    """Classes that each fill a curved sheet of six dimensions, overlapping a little, as digits do."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=points)
    inner = rng.normal(size=(points, 6))
    X = 0.55 * rng.normal(size=(points, dimensions))
    for c in range(classes):
        waves, phases = rng.normal(size=(6, dimensions)), rng.uniform(0, 2 * np.pi, dimensions)
        X[y == c] += np.cos(0.6 * inner[y == c] @ waves + phases)
    return X.astype(np.float32), y


def embeddings(points: int, columns: int, seed: int = 5) -> NDArray[np.float32]:
    """Like embeddings of text: topics of unequal size on curved sheets, variances that fall as 1/i, unit rows."""
    rng = np.random.default_rng(seed)
    topics, inner, hidden = 200, 24, 256
    topic = rng.choice(topics, size=points, p=rng.dirichlet(np.full(topics, 2.0)))
    latent = rng.normal(size=(points, inner)).astype(np.float32)
    latent = 0.5 * latent + 1.2 * rng.normal(size=(topics, inner)).astype(np.float32)[topic]
    waves = rng.normal(size=(inner, hidden)).astype(np.float32) / np.sqrt(inner)
    curved = np.tanh(2.0 * latent @ waves + rng.normal(size=hidden).astype(np.float32))
    falling = (1.0 + np.arange(columns, dtype=np.float32)) ** -0.5
    X = curved @ rng.normal(size=(hidden, columns)).astype(np.float32) / np.sqrt(hidden)
    X = (X + 0.3 * rng.normal(size=X.shape).astype(np.float32)) * falling
    X = X @ np.linalg.qr(rng.normal(size=(columns, columns)))[0].astype(np.float32)
    return np.asarray(X / np.linalg.norm(X, axis=1, keepdims=True), dtype=np.float32)


def helices(points: int, seed: int = 0) -> tuple[Floats, Classes]:
    """Two intertwined thick curves in three dimensions, in random order."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=points)
    along = rng.uniform(0, 6 * np.pi, points)
    X = np.column_stack([np.cos(along + np.pi * y), np.sin(along + np.pi * y), along / np.pi])
    return X + 0.15 * rng.normal(size=X.shape), y


def draw_labels(y: Classes, count: int, seed: int) -> Classes:
    """``count`` labels at random with every class among them; −1 elsewhere."""
    rng = np.random.default_rng(seed)
    few = np.full(len(y), -1)
    while True:
        chosen = rng.choice(len(y), count, replace=False)
        if len(np.unique(y[chosen])) == len(np.unique(y)):
            few[chosen] = y[chosen]
            return few


def error_percent(answer: NDArray[Any], y: Classes, few: Classes) -> float:
    """Share of wrong answers among the points without a label, in percent."""
    unlabelled = few == -1
    return 100.0 * float(np.mean(answer[unlabelled] != y[unlabelled]))
