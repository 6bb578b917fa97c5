"""Labels as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from homophily_client.labels import to_labels


@pytest.mark.parametrize(
    ("y", "points", "classes", "length"),
    [
        ([-1, 3, -1, 0], [1, 3], [3, 0], 4),
        (np.array([-1.0, 3.0, np.nan, 0.0]), [1, 3], [3, 0], 4),
        (np.array([[2], [-1]]), [0], [2], 2),
        (np.array([True, False]), [0, 1], [1, 0], 2),
        ([True, None, False], [0, 2], [1, 0], 3),
        (["cat", "", None, -1, float("nan"), "dog"], [0, 5], ["cat", "dog"], 6),
        (np.array(["cat", "", "dog"]), [0, 2], ["cat", "dog"], 3),
        (pd.Series(["cat", None, pd.NA, "dog"], index=[5, 6, 7, 8]), [0, 3], ["cat", "dog"], 4),
        (pd.Series([1, None, -1, 2], dtype="Int64"), [0, 3], [1, 2], 4),
        (pd.Series(["a", None, "b"], dtype="category"), [0, 2], ["a", "b"], 3),
        ((1, -1), [0], [1], 2),
        ({7: -1, 2: 1}, [7, 2], [-1, 1], None),
        ({np.int64(7): np.str_("cat")}, [7], ["cat"], None),
        (([4, 5], ["cat", "dog"]), [4, 5], ["cat", "dog"], None),
        ((np.array([4, 5]), np.array([-1, 1])), [4, 5], [-1, 1], None),
        (None, [], [], None),
        ({}, [], [], None),
    ],
)
def test_labels_are_read_as_scikit_learn_writes_them(
    y: Any, points: list[int], classes: list[Any], length: int | None
) -> None:
    given = to_labels(y)
    kind = given.message.classes.WhichOneof("kind")
    assert list(given.message.points) == points
    assert list(getattr(given.message.classes, kind).values if kind else []) == classes
    assert given.length == length


@pytest.mark.parametrize(
    "y",
    [
        ["cat", 1],
        [0.5, 1.0],
        [np.inf, 1.0],
        {0: None},
        [[0.5, -0.5]],
        [[np.inf, 0.5]],
        {0: "cat", 1: 2},
        {0.5: 1},
        ([1, 2], [0]),
        np.zeros((3, 2, 2)),
        [b"cat"],
    ],
)
def test_labels_that_cannot_be_sent_are_refused_here(y: Any) -> None:
    with pytest.raises(ValueError, match=r"must|classes"):
        to_labels(y)
