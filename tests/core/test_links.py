"""Links: reading, drawing from labels, closing, and showing contradictions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homophily.exceptions import ContradictingLinksError, ContradictingLinksWarning
from homophily.supervision.links import (
    Links,
    check_links,
    close_links,
    draw_links,
    find_contradiction,
    find_groups,
    links_from_labels,
)


def as_set(pairs):
    return {tuple(pair) for pair in np.asarray(pairs).tolist()}


def links(must=(), cannot=()):
    return Links(*(np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2) for pairs in (must, cannot)))


def allowed_labellings(given_links, points, classes):
    """Every way to give points classes that obeys all links, one by one."""
    for labels in itertools.product(range(classes), repeat=points):
        if all(labels[i] == labels[j] for i, j in given_links.must) and all(
            labels[i] != labels[j] for i, j in given_links.cannot
        ):
            yield labels


def consequences(given_links, points, classes):
    """Pairs that are together, and pairs that are apart, in every labelling that obeys; None if none does."""
    labellings = list(allowed_labellings(given_links, points, classes))
    if not labellings:
        return None
    pairs = list(itertools.combinations(range(points), 2))
    return (
        {(i, j) for i, j in pairs if all(y[i] == y[j] for y in labellings)},
        {(i, j) for i, j in pairs if all(y[i] != y[j] for y in labellings)},
    )


def test_links_are_sorted_and_each_is_there_once():
    read = check_links([(4, 2), (2, 4), (1, 0)], np.array([[3, 0]]), points=5)
    assert read.must.tolist() == [[0, 1], [2, 4]]
    assert read.cannot.tolist() == [[0, 3]]
    assert read.must.dtype == read.cannot.dtype == np.int64
    assert read.pairs.tolist() == [[0, 1], [2, 4], [0, 3]]
    assert read.targets.tolist() == [1.0, 1.0, 0.0]
    assert len(read) == 3


@pytest.mark.parametrize("nothing", [None, [], np.empty((0, 2)), ()])
def test_no_links_are_links_too(nothing):
    read = check_links(nothing, nothing, points=5)
    assert read.must.shape == read.cannot.shape == (0, 2)
    assert read.pairs.shape == (0, 2)


@pytest.mark.parametrize("name", ["must_link", "cannot_link"])
@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([(0, 7)], r"positions from 0 to 4\. Got \(0, 7\) instead"),
        ([(0, 1), (-1, 2)], r"positions from 0 to 4\. Got \(-1, 2\) instead"),
        ([(3, 3)], r"two different points\. Got \(3, 3\) instead"),
        ([(0.0, 1.0)], r"pairs of integers\. Got \(0\.0, 1\.0\)"),
        ([(True, False)], "pairs of integers"),
        ([(0, 1, 2)], r"shape \(n_links, 2\)\. Got shape \(1, 3\) instead"),
        ([0, 1], r"shape \(n_links, 2\)\. Got shape \(2,\) instead"),
        ([(0, 1), (2,)], "rows of different lengths"),
    ],
)
def test_wrong_links_are_named_with_the_pair(name, pairs, complaint):
    given_links = {"must_link": None, "cannot_link": None, name: pairs}
    with pytest.raises(ValueError, match=f"The '{name}' parameter of Map.fit must be .*{complaint}"):
        check_links(**given_links, points=5, owner="Map.fit")


def test_a_contradiction_is_shown_as_the_shortest_chain():
    must = [(7, 12), (12, 31), (7, 3), (3, 4), (4, 31)]
    with pytest.warns(ContradictingLinksWarning, match="7–12–31 must be together, yet 7–31 must be apart"):
        read = check_links(must, [(31, 7)], points=40)
    assert len(read) == 6
    with pytest.raises(ContradictingLinksError, match="7–12–31 must be together, yet 7–31 must be apart"):
        close_links(read, 40)


def test_a_pair_that_is_linked_both_ways_is_a_contradiction():
    with pytest.warns(ContradictingLinksWarning, match="1–2 must be together, yet 1–2 must be apart"):
        check_links([(1, 2)], [(2, 1)], points=3)


def test_three_points_apart_contradict_two_classes_only():
    triangle = links(cannot=[(0, 1), (1, 2), (0, 2)])
    assert find_contradiction(triangle, 3) is None
    assert as_set(close_links(triangle, 3).cannot) == as_set(triangle.cannot)
    with pytest.raises(ContradictingLinksError, match=r"of two classes, 0 apart from . apart from . apart from 0"):
        close_links(triangle, 3, two_classes=True)


pair_lists = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda p: p[0] < p[1]), max_size=6)


@settings(max_examples=100, deadline=None)
@given(pair_lists, pair_lists, st.booleans())
def test_closure_holds_what_every_obedient_labelling_shares(must, cannot, two_classes):
    # As many classes as points stand for «any number».
    given_links = links(set(must), set(cannot))
    expected = consequences(given_links, 5, 2 if two_classes else 5)
    if expected is None:
        assert find_contradiction(given_links, 5, two_classes=two_classes) is not None
        with pytest.raises(ContradictingLinksError):
            close_links(given_links, 5, two_classes=two_classes)
        return
    closed = close_links(given_links, 5, two_classes=two_classes)
    assert as_set(closed.must) == expected[0]
    assert as_set(closed.cannot) == expected[1]
    groups, apart = find_groups(given_links, 5, two_classes=two_classes)
    assert {(i, j) for i, j in itertools.combinations(range(5), 2) if groups[i] == groups[j]} == expected[0]
    assert {
        (i, j) for i, j in itertools.combinations(range(5), 2) if tuple(sorted(groups[[i, j]])) in as_set(apart)
    } == expected[1]


def test_closing_twice_changes_nothing():
    once = close_links(links([(0, 1), (1, 2)], [(2, 3), (3, 4)]), 6, two_classes=True)
    again = close_links(once, 6, two_classes=True)
    assert as_set(again.must) == as_set(once.must)
    assert as_set(again.cannot) == as_set(once.cannot)


def test_a_large_closure_is_a_draw_that_keeps_what_was_given():
    y = np.arange(4000) % 2
    few = links_from_labels(y)
    closed = close_links(few, 4000, max_pairs=10_000)
    assert len(closed.must) == len(closed.cannot) == 10_000
    assert as_set(few.must) <= as_set(closed.must)
    assert as_set(few.cannot) <= as_set(closed.cannot)
    assert (y[closed.must[:, 0]] == y[closed.must[:, 1]]).all()
    assert (y[closed.cannot[:, 0]] != y[closed.cannot[:, 1]]).all()
    np.testing.assert_array_equal(closed.must, close_links(few, 4000, max_pairs=10_000).must)


def test_more_links_than_the_cap_are_all_kept():
    given_links = links([(0, i) for i in range(1, 9)])
    assert as_set(close_links(given_links, 9, max_pairs=5).must) == as_set(given_links.must)


def test_labels_give_few_links_whose_closure_is_all_pairs():
    y = np.array([2, -1, 0, 0, 1, 2, -1, 0, 1])
    few = links_from_labels(y)
    assert len(few.must) == 7 - 3
    assert len(few.cannot) == 3
    closed = close_links(few, len(y))
    labelled = np.flatnonzero(y >= 0)
    pairs = list(itertools.combinations(labelled.tolist(), 2))
    assert as_set(closed.must) == {(i, j) for i, j in pairs if y[i] == y[j]}
    assert as_set(closed.cannot) == {(i, j) for i, j in pairs if y[i] != y[j]}


@pytest.mark.parametrize("y", [["a", "b", "", "a"], ["a", "b", None, "a"], [1.0, 2.0, np.nan, 1.0]])
def test_labels_of_other_kinds_are_read(y):
    few = links_from_labels(y)
    assert few.must.tolist() == [[0, 3]]
    assert few.cannot.tolist() == [[0, 1]]


def test_no_labels_give_no_links():
    assert len(links_from_labels([-1, -1])) == 0
    assert len(draw_links([-1, -1], 3, 3)) == 0


def test_drawn_links_are_true_different_and_repeatable():
    y = np.random.default_rng(0).integers(0, 3, size=60)
    y[:10] = -1
    drawn = draw_links(y, 100, 150, random_state=5)
    assert drawn.must.shape == (100, 2)
    assert drawn.cannot.shape == (150, 2)
    assert len(as_set(drawn.must)) == 100
    assert (y[drawn.must[:, 0]] == y[drawn.must[:, 1]]).all()
    assert (y[drawn.cannot[:, 0]] != y[drawn.cannot[:, 1]]).all()
    assert (y[drawn.pairs] >= 0).all()
    again = draw_links(y, 100, 150, random_state=5)
    np.testing.assert_array_equal(drawn.pairs, again.pairs)
    assert as_set(drawn.pairs) != as_set(draw_links(y, 100, 150, random_state=6).pairs)


def test_every_pair_is_drawn_as_often():
    y = [0, 0, 0, 0, 1, 1, 1]
    rng = np.random.default_rng(0)
    counts = {}
    for _ in range(3000):
        for pair in draw_links(y, 1, 1, rng).pairs.tolist():
            counts[tuple(pair)] = counts.get(tuple(pair), 0) + 1
    inside = [n for (i, j), n in counts.items() if y[i] == y[j]]
    between = [n for (i, j), n in counts.items() if y[i] != y[j]]
    assert len(inside) == 9
    assert len(between) == 12
    # Five standard deviations of a binomial count.
    np.testing.assert_allclose(inside, 3000 / 9, atol=5 * np.sqrt(3000 / 9))
    np.testing.assert_allclose(between, 3000 / 12, atol=5 * np.sqrt(3000 / 12))


def test_more_links_than_there_are_pairs_are_all_pairs():
    drawn = draw_links([0, 0, 0, 1], 100, 100)
    assert as_set(drawn.must) == {(0, 1), (0, 2), (1, 2)}
    assert as_set(drawn.cannot) == {(0, 3), (1, 3), (2, 3)}
