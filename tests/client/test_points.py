"""Points as they are sent: types, pieces, batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from homophily_client.points import Points
from homophily_service.contract.arrays import Limits, from_points, parts_of

LIMITS = Limits(points=10**9, dimensions=10**9, bytes=10**12)


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [
        ("f4", "f4"),
        ("f8", "f8"),
        (">f8", "f8"),
        ("f2", "f4"),
        ("?", "f4"),
        ("i1", "f4"),
        ("u2", "f4"),
        ("i4", "f8"),
        ("i8", "f8"),
        ("O", "f8"),
    ],
)
def test_points_are_sent_in_the_type_that_holds_them(dtype: str, sent: str) -> None:
    X = np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype)
    received = from_points(Points(X).message(), LIMITS, "points")
    assert received.dtype == np.dtype(sent)
    assert_array_equal(received, X.astype(sent))


@pytest.mark.parametrize("X", [np.array([["1", "2"]]), np.array([[1j]]), sparse.csr_array(np.array([[1j]]))])
def test_points_that_are_not_real_numbers_are_refused(X: Any) -> None:
    with pytest.raises(TypeError, match="real numbers"):
        Points(X)


@pytest.mark.parametrize("X", [np.zeros(3), np.zeros((2, 2, 2)), sparse.coo_array(np.ones(3))])
def test_points_must_have_two_dimensions(X: Any) -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        Points(X)


def test_sparse_points_are_sorted_and_added_up_without_touching_the_users() -> None:
    given = sparse.csr_array((np.array([1, 2, 3], dtype=np.int8), np.array([2, 0, 2]), np.array([0, 3, 3])), (2, 4))
    before = given.indices.copy()
    received: Any = from_points(Points(given).message(), LIMITS, "points")
    assert_array_equal(received.toarray(), [[2, 0, 4, 0], [0, 0, 0, 0]])
    assert_array_equal(received.indices, [0, 2])
    assert_array_equal(given.indices, before)


@pytest.mark.parametrize("kind", ["dense", "fortran", "strided", "wide", "memmap", "csr", "coo", "dataframe", "empty"])
@pytest.mark.parametrize("step", [7, 64, 10**6])
def test_bytes_read_piece_by_piece_are_those_of_the_whole(kind: str, step: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(23, 5))
    X: Any = whole
    if kind == "fortran":
        X = np.asfortranarray(whole)
    elif kind == "strided":
        X = np.repeat(whole, 2, axis=0)[::2]
    elif kind == "wide":
        X = rng.integers(0, 9, (2, 300))
    elif kind == "memmap":
        np.save(tmp_path / "x.npy", whole)
        X = np.load(tmp_path / "x.npy", mmap_mode="r")
    elif kind in ("csr", "coo"):
        X = sparse.random_array((23, 9), density=0.3, rng=0, format=kind)
    elif kind == "dataframe":
        X = pd.DataFrame({"a": [1, 2, 3], "b": [True, False, True], "c": [0.5, 1.5, 2.5]})
    elif kind == "empty":
        X = sparse.csr_array((3, 4))
    points = Points(X)
    pieces = [points.read(start, min(start + step, points.bytes)) for start in range(0, points.bytes, step)]
    message = points.message()
    expected = message.dense.data or (
        message.csr.values.data + message.csr.column_indices.data + message.csr.row_starts.data
    )
    assert b"".join(pieces) == expected
    assert sum(part.bytes for part in parts_of(points.shape_message(), LIMITS, "shape")) == points.bytes


@pytest.mark.parametrize("is_sparse", [False, True])
def test_batches_cover_all_rows_and_stay_below_the_limit(is_sparse: bool) -> None:
    X: Any = np.random.default_rng(0).normal(size=(100, 7))
    X[3] = 0
    X = sparse.csr_array(X) if is_sparse else X
    points = Points(X)
    ranges = list(points.batches(700, 30))
    assert [start for start, _ in ranges] == [0, *[stop for _, stop in ranges[:-1]]]
    assert ranges[-1][1] == 100
    parts = [points.message(start, stop) for start, stop in ranges]
    assert max(part.ByteSize() for part in parts) < 800
    received = [from_points(part, LIMITS, "points") for part in parts]
    stacked = sparse.vstack(received).toarray() if is_sparse else np.concatenate(received)  # type: ignore[arg-type]
    assert_array_equal(stacked, X.toarray() if is_sparse else X)


def test_rows_larger_than_the_limit_go_one_by_one() -> None:
    assert list(Points(np.zeros((3, 100))).batches(10, 10)) == [(0, 1), (1, 2), (2, 3)]
