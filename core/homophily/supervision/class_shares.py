"""How often each class is expected: priors, and the offsets that are added to scores so that decisions follow them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from homophily.arrays import Floats
from homophily.parameters import wrong_parameter
from homophily.supervision.labels import Labels, decide_index

#: Points that offsets are judged by, at most: offsets are a few numbers, and thousands of points settle each.
MOST_POINTS = 50_000
#: Weight α of balance in :func:`informative_offsets`. With one and three labels per class on USPS, optdigits thinned to
#: unequal classes, and overlapping drawn classes, 0.3 to 1 do about as well; 0 merges the drawn classes, and 3 holds
#: unequal ones at equal shares.
BALANCE = 0.5
#: Weight of the labels in :func:`informative_offsets` when they are many, and the number of labels for each free share
#: at which they have half of it. Chosen on two-class digits and texts with 5 and 25 labels per class and on digits with
#: 1 to 5: a weight of 6 or 10 trusts ten labels too much, 1 lets balance overrule fifty.
LABEL_WEIGHT, LABELS_PER_SHARE = 3.0, 20.0
#: Labels are compared with all points in this number of ranges of certainty, and count less where they are more than
#: EXPECTED times as many as a fair sample would have there. COMMON labels more on both sides keep chance from deciding.
#: Chosen on digits with 10 to 30 labels where the fit before was least sure (error 3.9 → 3.1 % with 50 random ones and
#: 30 of these, draws 0 to 9), and so that labels drawn at random are left alone.
CERTAINTY_RANGES, EXPECTED, COMMON = 10, 2.0, 2.0
#: What an equal number of labels for each class counts for at most, as evidence of equal shares. With 50 per class on
#: unbalanced sets, all of them took the error from 6 to 31 % (USPS {2, 5}) and from 2 to 26 % (thinned Pendigits).
STRATIFIED = 5.0


def are_stratified(counts: Floats) -> bool:
    """The same number of labels for each class: these were chosen class by class, and say nothing about shares."""
    return bool(np.ptp(counts) <= 1e-9 * counts.max())


def estimate_prior(labels: Labels) -> Floats:
    """Class shares of the labels with one more label of each class (Laplace's rule), so that none is 0."""
    scale = max(1.0, float(labels.confidence.max()))
    smoothed = labels.counts / scale + 1.0
    return np.asarray(smoothed / smoothed.sum())


def check_prior(prior: ArrayLike, classes: int, owner: str = "class_offsets") -> Floats:
    """A prior given by the user of ``owner``: ``classes`` positive numbers with sum 1."""
    shares = np.asarray(prior, dtype=np.float64)
    if shares.shape != (classes,) or not np.all(shares > 0) or abs(shares.sum() - 1) > 1e-6:
        raise wrong_parameter("class_prior", owner, f"{classes} positive numbers with sum 1", repr(prior))
    return np.asarray(shares / shares.sum())


def check_bounds(bounds: ArrayLike, classes: int, owner: str) -> Floats:
    """Bounds of the class shares given by the user of ``owner``: a lowest and a highest share per class, (C, 2)."""
    limits = np.asarray(bounds, dtype=np.float64)
    low, high = limits.T
    if limits.shape != (classes, 2) or not (np.all(low >= 0) and np.all(low <= high) and np.all(high <= 1)):
        wanted = f"{classes} pairs (low, high) with 0 <= low <= high <= 1"
        raise wrong_parameter("class_prior", owner, wanted, repr(bounds))
    if low.sum() > 1 or high.sum() < 1:
        wanted = "bounds between which shares can have the sum 1"
        raise wrong_parameter("class_prior", owner, wanted, f"lowest with sum {low.sum():g}, highest {high.sum():g}")
    return limits


def nearest_shares(shares: Floats, bounds: Floats) -> Floats:
    """The shares within ``bounds`` (C, 2) that are nearest to ``shares``: clip(shares + t) with sum 1."""
    low, high = bounds.T
    below, above = -1.0, 1.0
    # Bisection: the sum grows with t.
    for _ in range(60):
        t = (below + above) / 2
        below, above = (t, above) if np.clip(shares + t, low, high).sum() < 1 else (below, t)
    return np.asarray(np.clip(shares + above, low, high))


def bounded_offsets(scores: Floats, offsets: Floats, bounds: Floats) -> Floats:
    """``offsets`` if their decision has shares within ``bounds``, else those that give the nearest shares within."""
    points = len(scores)
    decided = np.bincount(decide_index(scores + offsets), minlength=len(bounds)) / points
    if np.all(decided >= bounds[:, 0] - 1 / points) and np.all(decided <= bounds[:, 1] + 1 / points):
        return offsets
    # An empty class is one point short of its offset being infinite.
    shares = np.maximum(nearest_shares(decided, bounds), 0.5 / points)
    return class_offsets(scores, shares / shares.sum())


def class_offsets(scores: Floats, prior: ArrayLike) -> Floats:
    """Offsets b with which the decision gives each class its share ``prior`` of the points.

    For two classes as closely as integers and equal scores allow; for more to within a few points, unless scores are
    equal. Returns n numbers: one for two classes (minus the threshold), C with mean 0 for more.
    """
    shares = check_prior(prior, max(2, scores.shape[1]))
    if scores.shape[1] == 1:
        return np.array([-_threshold(scores[:, 0], round(shares[0] * len(scores)))])
    offsets = np.zeros(scores.shape[1])
    spread = float(np.std(scores))
    if spread == 0:
        return np.asarray(np.log(shares) - np.log(shares).mean())
    for temperature in spread * 0.1 ** np.arange(0, 3.5, 0.5):
        offsets = _smooth_match(scores, shares, offsets, temperature)
    offsets = _exact_match(scores, _integer_counts(shares, len(scores)), offsets)
    return np.asarray(offsets - offsets.mean())


def likely_offsets(scores: Floats, counts: Floats) -> Floats:
    """Offsets that weigh the labels' class shares against cutting where few scores lie.

    The shares of few labels are a rough guide: forcing them on well-separated scores cuts through a class, ignoring
    them on flat scores leaves a small class empty. Between no offsets and those that meet the labels' shares, this
    takes the ones with the largest (likelihood of the label ``counts`` under the decided shares)^(1/(C − 1)) / (density
    of scores at the decision's boundary)², if that is more than e times its value without offsets. The root makes up
    for the C − 1 free shares, which fit the counts' noise; square and e were chosen on six data sets with 50 labels.
    Labels that were chosen class by class count as :data:`STRATIFIED` per class, a mild preference for balance.
    """
    if are_stratified(counts):
        counts = np.minimum(counts, STRATIFIED)
    prior = (counts + 1.0) / (counts.sum() + len(counts))
    matched = class_offsets(scores, prior)
    points = len(scores)
    best, best_value = np.zeros_like(matched), -np.inf
    for share in np.linspace(0.0, 1.0, 41):
        corrected = scores + share * matched
        decided = np.bincount(decide_index(corrected), minlength=len(counts))
        margin = _margins(corrected)
        if share == 0.0:
            width = _bandwidth(margin)
        density = np.mean(np.exp(-0.5 * (margin / width) ** 2)) + 1.0 / points
        likelihood = counts @ np.log(np.maximum(decided, 0.5) / points)
        value = likelihood / (len(counts) - 1) - 2.0 * np.log(density) - (1.0 if share > 0.0 else 0.0)
        if value > best_value:
            best, best_value = share * matched, value
    return best


class LabelEvidence(NamedTuple):
    """Labels that offsets should agree with: scores from around each label, without its own influence."""

    logits: Floats
    """Class scores (s, C)."""
    targets: Floats
    """Class shares (s, C) that the labels give."""
    weights: Floats
    """How sure each label is (s,); 1 is a certain label."""
    factors: Floats | float = 1.0
    """What each counts for besides, as :meth:`as_fair_sample` finds it."""

    @property
    def weight(self) -> float:
        """How much all of them count beside the mutual information."""
        count, shares = np.sum(self.weights * self.factors), self.targets.shape[1] - 1
        return float(LABEL_WEIGHT * count / (count + LABELS_PER_SHARE * shares))

    @property
    def counts(self) -> Floats:
        """The number of labels of each class."""
        return self.weights @ self.targets

    def as_fair_sample(self, logits: Floats, offsets: Floats) -> LabelEvidence:
        """The same labels, with less weight on those of a kind that there are too many of.

        A person who labels the points that a model is least sure of, near borders, leaves a sample that says little
        about shares. So the labels are sorted by how sure their surroundings are of a class, and so are all points,
        whose class scores are ``logits`` (u, C).
        """
        ordered = np.sort(_certainty(logits + offsets))

        def ranges(certainty: Floats) -> NDArray[np.intp]:
            rank = np.searchsorted(ordered, certainty) / len(ordered)
            return np.minimum((rank * CERTAINTY_RANGES).astype(np.intp), CERTAINTY_RANGES - 1)

        own = ranges(_certainty(self.logits + offsets))
        found = np.bincount(own, self.weights, CERTAINTY_RANGES)
        # Equal certainties are in one range, which then has more than its tenth.
        expected = np.bincount(ranges(ordered), minlength=CERTAINTY_RANGES) / len(ordered) * self.weights.sum()
        factors = np.minimum(1.0, (EXPECTED * expected + COMMON) / (found + COMMON))
        return self._replace(factors=factors[own])

    def log_likelihood(self, offsets: Floats) -> tuple[float, Floats]:
        """Mean log probability of the labels, and its gradient."""
        log_p = self.logits + offsets
        log_p -= logsumexp(log_p, axis=1, keepdims=True)
        share = self.weights * self.factors
        share = share / share.sum()
        return float(share @ (self.targets * log_p).sum(axis=1)), share @ (self.targets - np.exp(log_p))


def _certainty(logits: Floats) -> Floats:
    """The probability of the most likely class."""
    return np.asarray(1.0 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1))


def spread_sample(logits: Floats) -> Floats:
    """At most about :data:`MOST_POINTS` of the points, evenly."""
    return logits[:: max(1, len(logits) // MOST_POINTS)]


def informative_offsets(logits: Floats, start: Floats, labels: LabelEvidence | None = None) -> Floats:
    """Offsets b with which the classes tell most about the points, found uphill from ``start``; their mean is 0.

    They maximise H(s) − mean_i H(p_i) + α mean_c log s_c + w · (mean log likelihood of ``labels``), with p_i =
    softmax(logits_i + b) and s the mean of all p_i. The first two terms are the mutual information of points and
    classes: H(s) is large for balanced classes, H(p_i) is small where the decision passes between crowds of points
    instead of through one. The third is a prior towards balance, without which classes that overlap are merged. So
    shares follow the data where it shows them, and the borders that labels draw as these become many. How many labels a
    class has counts for nothing: their likelihood is that of labels chosen class by class, among which class c is
    n_c / (s_c · number of labels) times as frequent as elsewhere.
    """
    from scipy.optimize import minimize  # fits without offsets need not wait for its import

    # One row per class: sums over a few classes are fast along columns.
    sample = np.ascontiguousarray(spread_sample(logits).T)

    def loss(b: Floats) -> tuple[float, Floats]:
        log_p = sample + b[:, None]
        log_p -= _log_sum(log_p)
        p = np.exp(log_p)
        # A share that rounds to 0 would be lost for ever.
        shares = p.mean(axis=1) + 1e-12
        log_shares = np.log(shares)
        log_p -= log_shares[:, None]
        value = float(np.vdot(p, log_p) / p.shape[1] + BALANCE * log_shares.mean())
        slope = BALANCE / (len(b) * shares)
        direct = np.zeros_like(b)
        if labels is not None:
            likelihood, gradient = labels.log_likelihood(b - log_shares)
            value, direct = value + labels.weight * likelihood, labels.weight * gradient
            slope -= direct / shares
        log_p += slope[:, None]
        log_p -= np.einsum("cn,cn->n", p, log_p)
        through_shares = np.einsum("cn,cn->c", p, log_p) / p.shape[1]
        return -value, -(direct + through_shares)

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
    return np.asarray(found - found.mean())


def _log_sum(logits: Floats) -> Floats:
    """Log Σ_c exp(logits_c) over rows, which are classes; SciPy's takes three times as long."""
    top = logits.max(axis=0)
    return np.asarray(top + np.log(np.exp(logits - top).sum(axis=0)))


def _margins(corrected: Floats) -> Floats:
    """How far each point is from changing its class."""
    if corrected.shape[1] == 1:
        return corrected[:, 0]
    top = np.partition(corrected, -2, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def _bandwidth(values: Floats) -> float:
    """Silverman's rule for what lies between the targets: powers of the Laplacian may carry values far beyond them."""
    low, high = np.quantile(np.clip(values, -1.0, 1.0), [0.16, 0.84])
    spread = (high - low) / 2 or float(np.std(values)) or 1.0
    return float(0.9 * spread * len(values) ** -0.2)


def _threshold(values: Floats, below: int) -> float:
    """A cut with about ``below`` values under it, in the middle of a gap."""
    ordered = np.sort(values)
    gaps = np.flatnonzero(np.diff(ordered) > 0) + 1
    if gaps.size == 0:
        return float(ordered[0] + (1.0 if 2 * below > len(values) else -1.0))
    cut = gaps[np.abs(gaps - below).argmin()]
    return float(ordered[cut - 1] + (ordered[cut] - ordered[cut - 1]) / 2)


def _integer_counts(shares: Floats, points: int) -> NDArray[np.int64]:
    """Integers nearest to ``shares · points`` with the right sum (largest remainders)."""
    counts = np.floor(shares * points).astype(np.int64)
    order = np.argsort(counts - shares * points, kind="stable")
    counts[order[: points - counts.sum()]] += 1
    return counts


def _smooth_match(scores: Floats, shares: Floats, offsets: Floats, temperature: float) -> Floats:
    """Minimise the convex ``mean_i τ log Σ_c exp((f_ic + b_c)/τ) − πᵀb`` by damped Newton steps.

    Its gradient is (mean soft share − π), and as τ → 0 the soft shares become those of the argmax.
    """
    classes, columns = len(shares), np.ascontiguousarray(scores.T)

    def value(b: Floats) -> tuple[float, Floats]:
        logits = (columns + b[:, None]) / temperature
        norm = _log_sum(logits)
        return float(temperature * norm.mean() - shares @ b), np.exp(logits - norm)

    energy, soft = value(offsets)
    for _ in range(20):
        mean = soft.mean(axis=1)
        gradient = mean - shares
        if np.abs(gradient).sum() < 1e-3 * shares.min():
            break
        hessian = (np.diag(mean) - soft @ soft.T / len(scores)) / temperature
        # The ridge holds the free direction b + const, and classes that no point is near.
        hessian[np.diag_indices(classes)] += 1e-3 * np.trace(hessian) / classes + 1e-6 / temperature
        step = -np.linalg.solve(hessian, gradient)
        size = min(1.0, 10 * temperature / np.abs(step).max())
        for _ in range(20):
            trial, trial_soft = value(offsets + size * step)
            if trial <= energy + 1e-4 * size * (gradient @ step):
                break
            size /= 2
        else:
            break
        offsets, energy, soft = offsets + size * step, trial, trial_soft
    return offsets


def _exact_match(scores: Floats, counts: NDArray[np.int64], offsets: Floats) -> Floats:
    """Move one class's offset at a time to where it has exactly its count, while that lessens the total mismatch."""

    def excess(b: Floats) -> NDArray[np.int64]:
        return np.asarray(np.bincount((scores + b).argmax(axis=1), minlength=len(counts)) - counts)

    current = excess(offsets)
    for _ in range(20 * len(counts)):
        for c in np.argsort(-np.abs(current), kind="stable"):
            if current[c] == 0:
                return offsets
            corrected = scores + offsets
            own = corrected[:, c].copy()
            corrected[:, c] = -np.inf
            trial = offsets.copy()
            trial[c] -= _threshold(own - corrected.max(axis=1), len(scores) - counts[c])
            mismatch = excess(trial)
            if np.abs(mismatch).sum() < np.abs(current).sum():
                offsets, current = trial, mismatch
                break
        else:
            return offsets
    return offsets
