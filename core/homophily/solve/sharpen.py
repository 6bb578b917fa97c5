"""The sharp limit of ERR: every point has one class, and two points are related if they share it.

Then column j of K is the indicator of j's class, and tr(KᵀLK) = Σ_c |c| · cut(c): the relationship energy is a cut,
weighted by the sizes of the classes. It is lowered by threshold dynamics, which repeat two steps until hardly a class
changes: diffuse the classes over the graph for a few steps of a lazy random walk, with the labels held; decide anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, vstack
from scipy.sparse import eye_array as sparse_identity

from homophily.arrays import Floats
from homophily.graph.laplacian import Blocks

#: Steps of the walk between two decisions. On digits (USPS, MNIST, optdigits) with 1 to 5 labels per class 16 were
#: better than 4 and 32, and 8 and 24 no better.
STEPS = 16
#: The dynamics end when a smaller share of the points changes its class, or after this number of rounds.
SETTLED, MAX_ROUNDS = 2e-4, 60
#: Added to shares before their logarithm is taken: classes that do not reach a point are 7 below one that is certain.
FLOOR = 1e-3
#: The best of several starts is chosen when each changes a smaller share of the points in a round than this.
NEARLY_SETTLED = 2e-3
#: A walk's terms are left out if all of them change no share by more than this.
LEFT_OUT = 1e-5
#: Rows of the walk's matrix are kept for this number of labels per class, and this number of entries, at most.
MOST_ROWS, MOST_NUMBERS = 16, 2**26

Shares = NDArray[np.floating]
ChooseOffsets = Callable[[Floats, Floats, Callable[[], Floats]], Floats]


class Walk(Protocol):
    """Diffuses rows of class shares over a graph."""

    def __call__(self, shares: Shares, steps: int, held: Held | None = None) -> Shares:
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
    """The walk with NumPy and numba in float32; L is normalised or not, as ``degrees`` and ``normalized`` say.

    Its steps are a polynomial of one step, and take fewer products as a sum of Chebyshev's polynomials. Shares are
    between 0 and 1, and :data:`FLOOR` is added before their logarithm: float32 and the terms left out move scores by
    1e-2 at most, and by 1e-5 where a class is likely.
    """

    def __init__(self, laplacian: csr_array, degrees: Floats, normalized: bool, n_jobs: int | None = None) -> None:
        before, after = walk_factors(degrees, normalized)
        self.before, self.n_jobs = before.astype(np.float32)[:, None], n_jobs
        # A lazy step P has no zero on its diagonal.
        lazy = csr_array(4.0 * sparse_identity(len(degrees)) - 4.0 * diags_array(after) @ laplacian)
        self.lazy = csr_array((lazy.data.astype(np.float32), lazy.indices, lazy.indptr), lazy.shape)
        self.diagonal = np.flatnonzero(lazy.indices == np.repeat(np.arange(len(degrees)), np.diff(lazy.indptr)))

    def __call__(self, shares: Shares, steps: int, held: Held | None = None) -> NDArray[np.float32]:
        """See :class:`Walk`."""
        start = np.multiply(shares, self.before, dtype=np.float32)
        points, fixed = np.empty(0, dtype=np.intp), np.empty((0, 1), dtype=np.float32)
        if held is not None:
            # Each step is V ← M V + fixed.
            points = held.points
            fixed = (held.strengths[:, None] * held.targets).astype(np.float32) * self.before[points]
        of_start, of_fixed = chebyshev_steps(steps)
        doubled, blocks = self._doubled(held), Blocks(self.lazy, start.shape[1], self.n_jobs)
        # Clenshaw's rule. Its last step has half the product: it is taken twice instead.
        last, now = np.zeros_like(start), np.float32(of_start[-1]) * start
        now[points] += np.float32(of_fixed[-1]) * fixed
        spare = np.empty_like(start)
        for k in range(len(of_start) - 2, -1, -1):
            twice = 2.0 if k == 0 else 1.0
            blocks.multiply(doubled, now, spare, start, last, twice * of_start[k], -twice)
            spare[points] += np.float32(twice * of_fixed[k]) * fixed
            last, now, spare = now, spare, last
        now /= 2.0 * self.before
        if held is not None:
            firm = held.strengths >= 1.0
            now[points[firm]] = held.targets[firm]
        return now

    def _doubled(self, held: Held | None) -> csr_array:
        """4M − 2, twice what Chebyshev's polynomials take; M is a lazy step, with rows of held labels times 1 − h."""
        data: Any = self.lazy.data.copy()
        indptr = self.lazy.indptr
        if held is not None:
            lengths = np.diff(indptr)[held.points]
            edges = np.repeat(indptr[held.points] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            data[edges] *= np.repeat(1.0 - held.strengths, lengths)
        data[self.diagonal] -= 2.0
        return csr_array((data, self.lazy.indices, indptr), self.lazy.shape)


@cache
def chebyshev_steps(steps: int) -> tuple[Floats, Floats]:
    """Coefficients of Chebyshev's polynomials in 2P − 1: for P^steps, and for the sum of all lower powers of P.

    Terms that are less than :data:`LEFT_OUT` together are left out.
    """
    # P = (1 + x)/2 and x T_k = (T_{k−1} + T_{k+1})/2: a step spreads coefficients of T_|k| for all integers k.
    power, sums = np.zeros(2 * steps + 1), np.zeros(2 * steps + 1)
    power[steps] = 1.0
    for _ in range(steps):
        sums += power
        power = np.convolve(power, [0.25, 0.5, 0.25], mode="same")
    power, sums = (np.append(terms[steps], 2.0 * terms[steps + 1 :]) for terms in (power, sums))
    behind = np.cumsum((power + sums)[::-1])[::-1]
    kept = int(np.count_nonzero(behind > LEFT_OUT))
    return power[:kept], sums[:kept]


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


class _Dynamics:
    """What all starts share."""

    def __init__(self, walk: Walk, degrees: Floats, held: Held, classes: int, choose_offsets: ChooseOffsets) -> None:
        self.walk, self.degrees, self.held, self.classes = walk, degrees, held, classes
        self.choose_offsets = choose_offsets
        firm = held.strengths >= 1.0
        self.fixed, self.own = held.points[firm], held.targets[firm].argmax(axis=1)

    @cached_property
    def surroundings(self) -> Callable[[NDArray[np.intp]], Floats]:
        """The scores of the labels' surroundings, if anything asks for them."""
        return surroundings(self.walk, self.degrees, self.held, self.classes)

    def round(self, path: _Path) -> None:
        """Diffuse the classes and decide anew."""
        path.shares = np.asarray(self.walk(membership(path.decided, self.classes), STEPS, self.held), dtype=np.float32)
        scores = class_logits(path.shares)
        path.offsets = self.choose_offsets(scores, path.offsets, lambda: self.surroundings(path.decided))
        before, path.decided = path.decided, (scores + path.offsets).argmax(axis=1)
        path.decided[self.fixed] = self.own
        path.changed = float(np.mean(path.decided != before))
        path.rounds += 1

    def normalised_cut(self, decided: NDArray[np.intp]) -> float:
        """Σ_c cut(c) / volume(c)."""
        members = membership(decided, self.classes)
        volumes = self.degrees @ members
        # One lazy step is half the classes, half their neighbours'.
        neighbours = 2.0 * self.walk(members, 1) - members
        inside = self.degrees @ (members * neighbours)
        return float(np.sum(1.0 - inside / np.where(volumes > 0, volumes, 1.0)))


@dataclass
class _Path:
    """Where the dynamics are that began at one start."""

    decided: NDArray[np.intp]
    offsets: Floats
    shares: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    changed: float = 1.0
    rounds: int = 0


def sharpen(
    walk: Walk,
    degrees: Floats,
    held: Held,
    starts: list[NDArray[np.intp]],
    classes: int,
    choose_offsets: ChooseOffsets,
    judge: Callable[[Floats, Floats, Floats], float],
    callback: Callable[[Round], Any] | None = None,
) -> Sharpened:
    """Run the dynamics from each of the ``starts``, classes (u,) of all points, and keep the best result.

    The best one has the lowest normalised cut, less ``judge(label scores, scores, offsets)``: a region that the labels
    contradict is not a class, however well it is separated. It is chosen when all have nearly settled, and only it is
    run to the end. ``choose_offsets(scores, previous offsets, label scores)`` returns one number per class. Label
    scores (one row for each held label) are those of the labels' surroundings; ``choose_offsets`` gets a function that
    computes them. ``callback`` may raise to cancel.
    """
    dynamics, rounds = _Dynamics(walk, degrees, held, classes, choose_offsets), 0

    def run(path: _Path, settled: float) -> None:
        nonlocal rounds
        while path.changed >= settled and path.rounds < MAX_ROUNDS:
            dynamics.round(path)
            rounds += 1
            if callback is not None:
                callback(Round(rounds, path.changed))

    best, least = None, np.inf
    for start in starts:
        decided = start.copy()
        decided[dynamics.fixed] = dynamics.own
        path, value = _Path(decided, np.zeros(classes)), 0.0
        run(path, NEARLY_SETTLED)
        if len(starts) > 1:
            labels, scores = dynamics.surroundings(path.decided), class_logits(path.shares)
            value = dynamics.normalised_cut(path.decided) - judge(labels, scores, path.offsets)
        if best is None or value < least:
            best, least = path, value
    assert best is not None
    run(best, SETTLED)
    return Sharpened(best.shares, best.offsets, rounds)


def membership(decided: NDArray[np.intp], classes: int) -> NDArray[np.float32]:
    """1 at the class of each point, 0 elsewhere (u, C)."""
    members = np.zeros((len(decided), classes), dtype=np.float32)
    members[np.arange(len(decided)), decided] = 1.0
    return members


def class_logits(shares: NDArray[np.floating]) -> Floats:
    """One column per class: log(share + :data:`FLOOR`)."""
    return np.log(np.asarray(shares, dtype=np.float64) + FLOOR)


def sharp_scores(shares: NDArray[np.floating]) -> Floats:
    """Scores in a classifier's form: one column, the log odds of the second class, for two classes."""
    logits = class_logits(shares)
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits


def surroundings(walk: Walk, degrees: Floats, held: Held, classes: int) -> Callable[[NDArray[np.intp]], Floats]:
    """A function from classes (u,) to the scores (len(held.points), C) of the labels' surroundings.

    They are the shares after :data:`STEPS` steps without any label held, where each labelled point starts as its
    neighbours, not as itself. They are linear in the classes, and the walk is symmetric but for the degrees: so with
    few labels their rows of the walk's matrix are computed once.
    """
    points, u = held.points, len(degrees)

    def walked(decided: NDArray[np.intp]) -> Floats:
        members = membership(decided, classes)
        members[points] = (2.0 * walk(members, 1) - members)[points]
        return class_logits(walk(members, STEPS)[points])

    if len(points) > MOST_ROWS * classes or len(points) * u > MOST_NUMBERS:
        return walked
    # (P^t)_lj = (P^t)_jl d_j / d_l
    near, far = [], np.empty((u, len(points)), dtype=np.float32)
    weights = np.where(degrees > 0, degrees, 1.0)
    for first in range(0, len(points), 16):
        some = points[first : first + 16]
        columns = np.zeros((u, len(some)), dtype=np.float32)
        columns[some, np.arange(len(some))] = 1.0
        factor = weights[:, None] / weights[some]
        far[:, first : first + 16] = walk(columns, STEPS) * factor
        near.append(csr_array((2.0 * walk(columns, 1) * factor - columns).T))
    nearest, among = csr_array(vstack(near)), np.ascontiguousarray(far[points].T, dtype=np.float64)

    def multiplied(decided: NDArray[np.intp]) -> Floats:
        members = csr_array((np.ones(u, dtype=np.float32), decided, np.arange(u + 1)), shape=(u, classes))
        shares = np.asarray((members.T @ far).T, dtype=np.float64)
        corrected = (nearest @ members).toarray() - members[points].toarray()
        return class_logits(shares + among @ corrected)

    return multiplied
