"""The sharp limit of ERR: every point has one class, and two points are related if they share it.

Then column j of K is the indicator of j's class, and tr(KᵀLK) = Σ_c |c| · cut(c): the relationship energy is a cut,
weighted by the sizes of the classes. It is lowered by threshold dynamics, which repeat two steps until hardly a class
changes: diffuse the classes over the graph for a few steps of a lazy random walk, with the labels held; decide anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from homophily.arrays import Floats
from homophily.graph.laplacian import sparse_product

#: Steps of the walk between two decisions. On digits (USPS, MNIST, optdigits) with 1 to 5 labels per class 16 were
#: better than 4 and 32, and 8 and 24 no better.
STEPS = 16
#: The dynamics end when a smaller share of the points changes its class, or after this number of rounds.
SETTLED, MAX_ROUNDS = 2e-4, 60
#: Added to shares before their logarithm is taken: classes that do not reach a point are 7 below one that is certain.
FLOOR = 1e-3


class Walk(Protocol):
    """Diffuses rows of class shares over a graph."""

    def __call__(self, shares: Floats, steps: int, held: Held | None = None) -> Floats:
        """``shares`` (u, C) after ``steps`` times U ← ½U + ½D⁻¹WU, with labels held after each step."""


class Held(NamedTuple):
    """Labels that a walk holds: row i of the shares becomes h_i t_i + (1 − h_i) u_i."""

    points: NDArray[np.intp]
    strengths: Floats
    """h, from 0 to 1."""
    targets: Floats
    """Class shares (len(points), C)."""

    @classmethod
    def of(cls, confidence: Floats, shares: Floats) -> Held:
        """A confidence of 1 or more holds a label fast; a smaller one is the part of it that a whole round restores."""
        points = np.flatnonzero(confidence > 0)
        strengths = 1.0 - (1.0 - np.minimum(confidence[points], 1.0)) ** (1.0 / STEPS)
        return cls(points, strengths, shares[points])


class LazyWalk:
    """The walk with NumPy and numba; L is normalised or not, as ``degrees`` and ``normalized`` say."""

    def __init__(self, laplacian: csr_array, degrees: Floats, normalized: bool, n_jobs: int | None = None) -> None:
        self.laplacian, self.n_jobs = laplacian, n_jobs
        self.before, self.after = walk_factors(degrees, normalized)

    def __call__(self, shares: Floats, steps: int, held: Held | None = None) -> Floats:
        """See :class:`Walk`."""
        V = shares * self.before[:, None]
        for _ in range(steps):
            V -= self.after[:, None] * sparse_product(self.laplacian, V, n_jobs=self.n_jobs)
            if held is not None:
                hold = held.strengths[:, None]
                targets = held.targets * self.before[held.points, None]
                V[held.points] = hold * targets + (1.0 - hold) * V[held.points]
        return np.asarray(V / self.before[:, None])


def walk_factors(degrees: Floats, normalized: bool) -> tuple[Floats, Floats]:
    """Vectors b and a with which V = diag(b) U takes a step of the lazy walk as V ← V − diag(a) L V."""
    positive = np.where(degrees > 0, degrees, 1.0)
    if normalized:
        return np.sqrt(positive), np.full(len(positive), 0.5)
    return np.ones(len(positive)), 0.5 / positive


@dataclass(frozen=True)
class Round:
    """What a callback gets after each round."""

    iteration: int
    changed: float
    """The share of the points that changed their class."""
    energy: None = None
    gradient_norm: None = None
    n_evaluations: int = 0


class Sharpened(NamedTuple):
    """Where the dynamics settled."""

    shares: NDArray[np.float32]
    """Diffused class shares (u, C): what is decided on, stored, and averaged for new points."""
    offsets: Floats
    """Added to :func:`sharp_scores` of the shares before the decision."""
    rounds: int


def sharpen(
    walk: Walk,
    degrees: Floats,
    held: Held,
    starts: list[NDArray[np.intp]],
    classes: int,
    choose_offsets: Callable[[Floats, Floats, Callable[[], Floats]], Floats],
    judge: Callable[[Floats, Floats, Floats], float],
    callback: Callable[[Round], Any] | None = None,
) -> Sharpened:
    """Run the dynamics from each of the ``starts``, classes (u,) of all points, and keep the best result.

    The best one has the lowest normalised cut, less ``judge(label scores, scores, offsets)``: a region that the labels
    contradict is not a class, however well it is separated. ``choose_offsets(scores, previous offsets, label scores)``
    returns one number per class. Label scores (one row for each held label) are those of the labels' surroundings; as
    they cost a walk, ``choose_offsets`` gets a function that computes them. ``callback`` may raise to cancel.
    """
    firm = held.strengths >= 1.0
    fixed, own = held.points[firm], held.targets[firm].argmax(axis=1)
    best, least, rounds = None, np.inf, 0
    for start in starts:
        decided, offsets = start.copy(), np.zeros(classes)
        for _ in range(MAX_ROUNDS):
            decided[fixed] = own
            shares = walk(_members(decided, classes), STEPS, held).astype(np.float32)
            scores = class_logits(shares)
            offsets = choose_offsets(scores, offsets, partial(_label_logits, walk, held, decided, classes))
            before, decided = decided, (scores + offsets).argmax(axis=1)
            decided[fixed] = own
            changed, rounds = float(np.mean(decided != before)), rounds + 1
            if callback is not None:
                callback(Round(rounds, changed))
            if changed < SETTLED:
                break
        value = _normalised_cut(walk, degrees, decided, classes)
        value -= judge(_label_logits(walk, held, decided, classes), scores, offsets)
        if best is None or value < least:
            best, least = Sharpened(shares, offsets, 0), value
    assert best is not None
    return best._replace(rounds=rounds)


def _members(decided: NDArray[np.intp], classes: int) -> Floats:
    """1 at the class of each point, 0 elsewhere (u, C)."""
    members = np.zeros((len(decided), classes))
    members[np.arange(len(decided)), decided] = 1.0
    return members


def class_logits(shares: NDArray[np.floating]) -> Floats:
    """One column per class: log(share + :data:`FLOOR`)."""
    return np.log(np.asarray(shares, dtype=np.float64) + FLOOR)


def sharp_scores(shares: NDArray[np.floating]) -> Floats:
    """Scores in a classifier's form: one column, the log odds of the second class, for two classes."""
    logits = class_logits(shares)
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits


def _normalised_cut(walk: Walk, degrees: Floats, decided: NDArray[np.intp], classes: int) -> float:
    """Σ_c cut(c) / volume(c)."""
    members = _members(decided, classes)
    volumes = degrees @ members
    # One lazy step is half the classes, half their neighbours'.
    neighbours = 2.0 * walk(members, 1) - members
    inside = degrees @ (members * neighbours)
    return float(np.sum(1.0 - inside / np.where(volumes > 0, volumes, 1.0)))


def _label_logits(walk: Walk, held: Held, decided: NDArray[np.intp], classes: int) -> Floats:
    """Scores (len(held.points), C) of the labels, none of them held, each starting as its neighbours, not as itself."""
    members = _members(decided, classes)
    members[held.points] = (2.0 * walk(members, 1) - members)[held.points]
    return class_logits(walk(members, STEPS)[held.points])
