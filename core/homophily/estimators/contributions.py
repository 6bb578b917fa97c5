"""How the score of a fitted classifier depends on each label, by one solve with the transposed system (the adjoint).

- IRR is linear: with A = H + λ1 L^p, f_i = Σ_j (A⁻¹)_ij h_j t_j, and one solve A z = e_i gives every label's part.
- Smooth ERR is linearised where it stopped: the energy's second derivative takes the place of 2A. For more than two
  classes in the vector form the linear system alone stands for it, as its second derivatives take too long.
- Sharp relationships: the share of a class around a point is where a walk from it ends. A walk that ends at a point
  that is no label goes on among the points of that one's class until it meets a label.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import LinearOperator, minres
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from homophily.arrays import Floats
from homophily.device.operations import CpuOperations
from homophily.estimators.classifiers import ERRClassifier
from homophily.estimators.held_out import without_own_label
from homophily.estimators.problem import Problem
from homophily.estimators.transduction import GraphClassifier
from homophily.exceptions import UnlabelledComponentsWarning
from homophily.graph.laplacian import sparse_product
from homophily.solve.irr import solve_linear
from homophily.solve.point_energy import attach
from homophily.solve.sharpen import STEPS, Held
from homophily.supervision.labels import class_shares_of
from homophily.threads import single_threaded_blas

#: Relative accuracy of the linear solves: the parts add up to the score to about this.
TOLERANCE = 1e-12
#: The step of the differences of gradients that give second derivatives, in units of σ_f, and how far these are solved.
STEP, HESSIAN_TOLERANCE, HESSIAN_STEPS = 1e-4, 1e-5, 200
#: Relative accuracy of values from which a label is left out.
LEFT_OUT_TOLERANCE = 1e-4
#: Columns in which labels' influences are computed there: with 8, as many as calibrations use, one of 60 labels was
#: taken for a suspect because of its neighbours in the columns.
LEFT_OUT_COLUMNS = 16


class Place(NamedTuple):
    """A point as a weighted mean of stored points."""

    points: NDArray[np.intp]
    weights: Floats


class Lead(NamedTuple):
    """The lead of one class' score over another's at a place: the labels' parts of it, and what the classes bring."""

    offset: float
    labels: NDArray[np.intp]
    parts: Floats
    without_largest: float | None
    """The score to expect if the label with the largest part had not been given, where there is a formula for it."""


def places(model: GraphClassifier, X: Any) -> list[Place]:
    """Where validated new points are; a copy of a stored point is that point."""
    is_sharp = model.sharp_shares_ is not None
    edges = attach(X, model.graph_, normalized=model.normalized and not is_sharp, known=model.reached_)
    found = [
        Place(indices[weights > 0].astype(np.intp), weights[weights > 0])
        for indices, weights in zip(edges.indices, edges.shares / _root(model, edges.degrees)[:, None], strict=True)
    ]
    for copy, twin in zip(edges.copies, edges.twins, strict=True):
        found[copy] = stored_place(model, int(twin))
    return found


def stored_place(model: GraphClassifier, point: int) -> Place:
    """Where a point of ``fit`` is."""
    return Place(np.array([point]), 1.0 / _root(model, model.graph_.degrees[[point]]))


def _root(model: GraphClassifier, degrees: Floats) -> Floats:
    """What values are divided by to become scores."""
    if model.sharp_shares_ is not None:
        return np.ones_like(degrees)
    return 1.0 / model._scores(np.ones((len(degrees), 1)), degrees)[:, 0]


def gap(model: GraphClassifier, place: Place, scores: Floats, answer: int, other: int) -> float:
    """The lead of class ``answer`` over class ``other`` at a place, by the decision's scores.

    With sharp relationships, by the share of each class around the place, which is what labels add up to.
    """
    if model.sharp_shares_ is not None:
        scores = place.weights @ model.sharp_shares_[place.points].astype(np.float64)
    return float(scores[answer] - scores[other])


def lead(model: GraphClassifier, place: Place, answer: int, other: int, score: float) -> Lead:
    """What the :func:`gap` at a place that labels reach consists of; ``score`` is the gap."""
    labels = np.flatnonzero(model.given_labels_.confidence > 0)
    q = np.zeros(model.graph_.n_points)
    q[place.points] = place.weights
    if model.sharp_shares_ is not None:
        return Lead(0.0, labels, _walked(model, q, answer, other)[labels], None)
    problem = model._problem(model.given_labels_)
    rows = np.arange(len(q))[problem.rows]
    found = [(system, system.solve(q[rows, None] * system.signs)) for system in _systems(model, problem, answer, other)]
    parts = np.sum([system.parts(Z) for system, Z in found], axis=0)
    largest = int(np.abs(parts).argmax())
    without = None
    if _is_linearised(model) or not isinstance(model, ERRClassifier) or model.lambda2 == 0.0:
        without = score + sum(system.change_without(largest, Z) for system, Z in found)
    everywhere = np.zeros(len(q))
    everywhere[rows] = parts
    offset = float(_difference(model.offsets_, answer, other))
    return Lead(offset, labels, everywhere[labels], without)


def refitted_without(model: GraphClassifier, label: int) -> GraphClassifier | None:
    """A fit on the same graph without one label; None if that is the only label of its class.

    The classes of the fit are positions in those of the model.
    """
    labels = model.given_labels_
    weights = np.where(np.arange(len(labels.confidence)) == label, 0.0, labels.confidence)
    shares = class_shares_of(labels.targets)
    if not (weights @ shares > 0).all():
        return None
    again: GraphClassifier = clone(model).set_params(graph=None, sharpen=model.sharp_shares_ is not None, callback=None)
    with warnings.catch_warnings():
        # They would concern a fit that nobody asked for.
        warnings.simplefilter("ignore", UnlabelledComponentsWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        again.fit(model.graph_, shares, sample_weight=weights)
    return again


def _difference(values: Floats, answer: int, other: int) -> Any:
    """Column ``answer`` less column ``other``; a single column stands for class 1 against class 0."""
    if values.shape[-1] == 1:
        return values[..., 0] if answer else -values[..., 0]
    return values[..., answer] - values[..., other]


@dataclass(frozen=True)
class _System:
    """The energy around a solution: half its second derivative B, in place of IRR's A, and the labels."""

    solve: Callable[[Floats], Floats]
    """B⁻¹ times values (u, n)."""
    F: Floats
    targets: Floats
    confidence: Floats
    signs: Floats
    """How each column counts in the score."""

    def parts(self, Z: Floats) -> Floats:
        """What each label adds to the score, of which Z is B⁻¹ times the derivative."""
        return np.asarray(self.confidence * np.sum(Z * self.targets, axis=1))

    def change_without(self, label: int, Z: Floats) -> float:
        """The change of the score without this label: B loses h_j on its diagonal, and the label its pull."""
        h, pull = self.confidence[label], Z[label]
        if not pull.any():
            return 0.0
        right = np.zeros_like(self.F)
        right[label] = pull
        again = self.solve(right)[label]
        left = 1.0 - h * (pull @ again) / (pull @ pull)
        # Without the only label of a component nothing is left of the values.
        freed = pull + h * again / left if left > 1e-9 else pull
        return float(h * freed @ (self.F[label] - self.targets[label]))


def _systems(model: GraphClassifier, problem: Problem, answer: int, other: int) -> list[_System]:
    """One system for the lead, or one for each of two classes that were solved for alone."""
    F, targets, h = model.solution_[problem.rows], problem.targets, problem.confidence
    if not _is_linearised(model):
        how: dict[str, Any] = {"power": model._power, "tolerance": TOLERANCE, "n_jobs": model.n_jobs}

        def solve(right: Floats) -> Floats:
            return solve_linear(problem.laplacian, h, right, model.lambda1, **how).solution

        lead = [_difference(values, answer, other)[:, None] for values in (F, targets)]
        return [_System(solve, lead[0], lead[1], h, np.ones(1))]
    if model._one_vs_rest:
        # Each of its problems has targets 1 and −1.
        systems = []
        for c, sign in ((answer, 1.0), (other, -1.0)):
            column, wanted = np.ascontiguousarray(F[:, [c]]), np.where(h[:, None] > 0, 2.0 * targets[:, [c]] - 1.0, 0.0)
            systems.append(_System(_hessian_solver(model, problem, column), column, wanted, h, np.array([sign])))
        return systems
    F = np.ascontiguousarray(F)
    return [_System(_hessian_solver(model, problem, F), F, targets, h, np.array([1.0 if answer else -1.0]))]


def _is_linearised(model: GraphClassifier) -> TypeGuard[ERRClassifier]:
    """Whether second derivatives are used. Those of several columns at once would take time quadratic in the points."""
    one_column = model.solution_.shape[1] == 1 or getattr(model, "_one_vs_rest", False)
    return isinstance(model, ERRClassifier) and model.lambda2 > 0.0 and one_column


def _hessian_solver(model: ERRClassifier, problem: Problem, F: Floats) -> Callable[[Floats], Floats]:
    """Solves ½∇²E(F) Z = right; second derivatives are differences of gradients."""
    _, relationships, count = model._engine(problem, F)
    operations, sigma_f = CpuOperations(problem.laplacian, model.n_jobs), model._sigma_f(F.shape[1])
    on_graph = model._power, problem.confidence
    energy = operations.label_energy(*on_graph, np.zeros_like(F), model.lambda1, relationships, model.lambda2 / count)
    precondition = operations.preconditioner(*on_graph, model.lambda1 + model.lambda2 / (2.0 * sigma_f**2))
    step = STEP * sigma_f

    def product(direction: Floats) -> Floats:
        size = float(np.abs(direction).max())
        if size == 0.0:
            return direction
        D = (step / size) * direction.reshape(F.shape)
        return np.asarray((energy(F + D)[1] - energy(F - D)[1]).ravel() * (size / (4.0 * step)))

    shape: dict[str, Any] = {"shape": (F.size, F.size), "dtype": np.float64}
    hessian = LinearOperator(matvec=product, **shape)
    inverse = LinearOperator(matvec=lambda x: precondition(x.reshape(F.shape)).ravel(), **shape)

    def solve(right: Floats) -> Floats:
        with single_threaded_blas():
            z, _ = minres(hessian, right.ravel(), M=inverse, rtol=HESSIAN_TOLERANCE, maxiter=HESSIAN_STEPS)
        return np.asarray(z.reshape(F.shape))

    return solve


def _walked(model: GraphClassifier, q: Floats, answer: int, other: int) -> Floats:
    """Where a walk from q meets labels; those of ``answer`` count 1, those of ``other`` −1."""
    labels = model.given_labels_
    targets = class_shares_of(labels.targets)
    held = Held.of(labels.confidence, targets)
    degrees = np.where(model.graph_.degrees > 0, model.graph_.degrees, 1.0)
    decided = np.searchsorted(model.classes_, model.transduction_)
    met = np.zeros(len(q))
    # The transposed walk, by the symmetric form: W is symmetric, so Pᵀ = D P D⁻¹.
    W, here = model.graph_.W, q.copy()
    for _ in range(STEPS):
        caught = held.strengths * here[held.points]
        met[held.points] += caught
        here[held.points] -= caught
        here = 0.5 * here + 0.5 * sparse_product(W, here / degrees, n_jobs=model.n_jobs)
    parts = _difference(targets, answer, other) * met
    for sign, c in ((1.0, answer), (-1.0, other)):
        parts += sign * _met_within(
            W, decided == c, np.where(decided == c, here, 0.0), held, targets[:, c], model.n_jobs
        )
    return np.asarray(parts)


def _met_within(
    W: csr_array, inside: NDArray[np.bool_], here: Floats, held: Held, shares: Floats, n_jobs: int | None
) -> Floats:
    """Where a walk that starts as ``here`` and stays ``inside`` meets labels whose share in the class is not 0."""
    met = np.zeros(len(here))
    is_label = np.zeros(len(here), dtype=bool)
    is_label[held.points] = shares[held.points] > 0
    met[is_label] = np.where(inside, here, 0.0)[is_label]
    rows = np.flatnonzero(inside & ~is_label)
    labels = np.flatnonzero(is_label & inside)
    if rows.size == 0 or labels.size == 0:
        return met
    between = csr_array(W[rows][:, labels])
    within = csr_array(W[rows][:, rows])
    degrees = np.asarray(within.sum(axis=1))
    laplacian = csr_array(diags_array(degrees) - within)
    laplacian.sort_indices()
    confidence = np.asarray(between.sum(axis=1), dtype=np.float64)
    z = solve_linear(laplacian, confidence, here[rows, None], 1.0, tolerance=TOLERANCE, n_jobs=n_jobs).solution[:, 0]
    met[labels] += between.T @ z
    return met


def left_out_shares(model: GraphClassifier) -> tuple[NDArray[np.intp], Floats]:
    """Labelled points that other labels reach, and the share (s, C) of each class in what those say of them.

    Each label is left out of the linear problem with p = 1, in which every value is a mean of labels.
    """
    problem = model._problem(model.given_labels_)
    rows = np.flatnonzero(problem.confidence > 0)
    targets = class_shares_of(problem.targets)
    system: dict[str, Any] = {"lambda1": model.lambda1, "power": 1}
    given = problem.confidence, targets, targets.argmax(axis=1), LEFT_OUT_COLUMNS, LEFT_OUT_TOLERANCE
    left = without_own_label(problem.operations, *given, **system)
    left = np.maximum(left, 0.0)
    total = left.sum(axis=1)
    component = model.graph_.component_labels
    points = np.arange(model.graph_.n_points)[problem.rows][rows]
    # The only label of a component is compared with nothing.
    reached = (np.bincount(component[points])[component[points]] > 1) & (total > 0)
    return points[reached], left[reached] / total[reached, None]
