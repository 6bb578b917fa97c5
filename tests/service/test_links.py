"""Links as the service reads, joins, withdraws and checks them, and how they are stored with a map."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homophily_client._pb import embedding_pb2 as pb
from homophily_service.contract.errors import DataLoss, InvalidRequest
from homophily_service.contract.links import (
    Links,
    check_closure,
    each_once,
    find_contradiction,
    join,
    links_of_labels,
    read_links,
    without,
)
from homophily_service.storage.blobs.objects import Blobs
from homophily_service.storage.embeddings import Given, load_embedding, save_embedding

from .serving import links_of

POINTS = 5
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda pair: pair[0] != pair[1]), max_size=6)


def links(must: Any = (), cannot: Any = ()) -> Links:
    return Links(*(np.array(list(pairs), dtype=np.int64).reshape(-1, 2) for pairs in (must, cannot)))


def can_be_obeyed(some: Links, classes: int) -> bool:
    """The slow way: try every division of the points."""
    return any(
        all(group[i] == group[j] for i, j in some.must) and all(group[i] != group[j] for i, j in some.cannot)
        for group in product(range(classes), repeat=POINTS)
    )


@given(PAIRS, PAIRS)
def test_a_contradiction_is_found_if_and_only_if_there_is_one(must: Any, cannot: Any) -> None:
    some = links(must, cannot)
    for two_classes in (False, True):
        found = find_contradiction(some, two_classes=two_classes)
        assert (found is None) == can_be_obeyed(some, 2 if two_classes else POINTS)
        if found is not None and found.cannot is not None:
            alone = links(must, [cannot[found.cannot]])
            assert find_contradiction(alone, two_classes=False) is not None


@given(PAIRS, PAIRS, st.lists(st.integers(0, 2), min_size=POINTS, max_size=POINTS))
def test_labels_are_told_by_few_links_from_which_the_others_follow(must: Any, cannot: Any, classes: list[int]) -> None:
    points = np.arange(POINTS)
    some = links_of_labels(points, np.array(classes))
    every = [(i, j) for i in points for j in points if i < j]
    pairwise = links(
        [(i, j) for i, j in every if classes[i] == classes[j]], [(i, j) for i, j in every if classes[i] != classes[j]]
    )
    said = links(must, cannot)
    few, all_of_them = (find_contradiction(join(said, others), two_classes=False) for others in (some, pairwise))
    assert (few is None) == (all_of_them is None)


def test_closure_is_checked_only_where_it_is_asked_for() -> None:
    contrary = links([(0, 1)], [(2, 3), (1, 0)])
    for closure in (pb.LINK_CLOSURE_UNSPECIFIED, pb.LINK_CLOSURE_NONE):
        check_closure(contrary, links(), closure)
    with pytest.raises(InvalidRequest, match=r"links\.cannot\[1\]"):
        check_closure(contrary, links(), pb.LINK_CLOSURE_TRANSITIVE)
    with pytest.raises(InvalidRequest, match=r"^links: contradicts other links"):
        check_closure(links([(0, 1)]), links([], [(1, 0)]), pb.LINK_CLOSURE_TRANSITIVE)
    with pytest.raises(InvalidRequest, match="would be apart from itself"):
        check_closure(contrary, links(), pb.LINK_CLOSURE_TWO_CLASS)


def test_links_are_withdrawn_whichever_point_is_named_first() -> None:
    some = links([(0, 1), (3, 2), (1, 0)], [(0, 4)])
    left = without(some, links([(1, 0)]), "withdrawn")
    assert (left.must.tolist(), left.cannot.tolist()) == ([[3, 2]], [[0, 4]])
    with pytest.raises(InvalidRequest, match=r"withdrawn\.cannot\[1\]: the embedding has no such link between 1 and 2"):
        without(some, links([], [(4, 0), (1, 2)]), "withdrawn")
    assert each_once(some.must).tolist() == [[0, 1], [2, 3]]


def test_a_request_has_so_many_links_at_most() -> None:
    message = links_of([(0, 1)] * 3, [(1, 2)] * 2)
    assert [len(pairs) for pairs in read_links(message, 3, "links", max_links=5)] == [3, 2]
    with pytest.raises(InvalidRequest, match="links: must be at most 4 links; got 5"):
        read_links(message, 3, "links", max_links=4)


@pytest.mark.parametrize("classes", [["a", "ζ 👍", "a"], [2**63 - 1, -1, -1], []])
def test_what_was_said_of_a_map_comes_back(tmp_path: Path, classes: list[Any]) -> None:
    blobs = Blobs(str(tmp_path))
    dtype = object if classes and isinstance(classes[0], str) else np.int64
    labels = np.array(classes, dtype=dtype)
    said = Given(links([(0, 1)], [(1, 2), (3, 0)]), np.arange(len(classes)), labels)
    coordinates = np.random.default_rng(0).normal(size=(5, 2))
    size = save_embedding(blobs, "embeddings/p/e/t", coordinates, None, said.links, links(), said)
    assert size == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    found, again = load_embedding(blobs, "embeddings/p/e/t")
    np.testing.assert_array_equal(found, coordinates)
    assert again.links.cannot.tolist() == [[1, 2], [3, 0]]
    assert (again.label_points.tolist(), again.label_classes.tolist()) == (list(range(len(classes))), classes)
    blobs.write("embeddings/p/e/u", blobs.read("embeddings/p/e/t").arrays, {"kind": "embedding", "version": 2})
    with pytest.raises(DataLoss, match="not an embedding that this version of the service can read"):
        load_embedding(blobs, "embeddings/p/e/u")
