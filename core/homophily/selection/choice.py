"""From trials to a choice.

With few held-out labels the smallest error is a matter of luck: of 50 answers, 15 % wrong is much like 20 %. But
neighbouring parameters have similar errors (the paper's surface is smooth). So the scores are smoothed before the
smallest is taken: by the posterior mean of a Gaussian process with a length scale of one :attr:`Dimension.step` and the
noise of that number of answers. With many held-out labels hardly anything is smoothed. A penalty grows with the
distance from where the search begins, which is good on many sets.
"""

from __future__ import annotations

import numpy as np

from homophily.arrays import Floats
from homophily.selection.records import Parameters, Trial
from homophily.selection.sampler import Dimension

# All three were chosen on draws of labels other than those that are reported.
#: Weight of the log-loss beside the error.
LOSS_SHARE = 0.3
#: Trials share their held-out points and so most of their luck; this share of the variance is their own.
OWN_VARIANCE = 0.25
#: Penalty for each squared step from where the search begins, in standard deviations of the noise: with two classes,
#: and with more. Many classes have many labels, and so little noise in the error, but the log-loss has its own: with
#: 0.5, a search over ten digits left its beginning on 4 of 10 draws, each time for a higher error on the other points
#: (7.3 % against 7.0 % on average, draws 20 to 29).
PULL, PULL_OF_MANY = 0.5, 1.0


def score(trial: Trial) -> float:
    """The error and a share of the calibrated log-loss, which separates trials of equal error by their margins."""
    assert trial.error is not None
    assert trial.loss is not None
    return trial.error + LOSS_SHARE * trial.loss


def rank(
    tried: list[Trial], dimensions: dict[str, Dimension], defaults: list[Parameters], pull: float = PULL
) -> list[Trial]:
    """Trials that were not pruned, best first; pruned ones only inform about their neighbours.

    All have an error; ``defaults`` says for each where a search of its kind begins, and ``pull`` how much it is drawn
    there.
    """
    if not tried:
        return []
    places = _places([trial.parameters for trial in tried], dimensions)
    away = ((places - _places(defaults, dimensions)) ** 2).sum(axis=1)
    variance = noise_variance(tried)
    values = smoothed(places, np.array([score(trial) for trial in tried]), variance) + pull * variance**0.5 * away
    order = np.lexsort([[trial.number for trial in tried], away, values])
    return [tried[i] for i in order if not tried[i].pruned]


def _places(points: list[Parameters], dimensions: dict[str, Dimension]) -> Floats:
    return np.array([[dim.position(point[name]) for name, dim in dimensions.items()] for point in points])


def noise_variance(trials: list[Trial]) -> float:
    """Variance of a trial's error: the binomial one, as far as trials do not share it."""
    held_out = max(trial.held_out for trial in trials)
    mean = float(np.mean([trial.error for trial in trials if trial.error is not None]))
    wrong = min(max(mean, 1.0 / held_out), 0.5)
    return OWN_VARIANCE * wrong * (1.0 - wrong) / held_out


def smoothed(places: Floats, values: Floats, noise: float) -> Floats:
    """The posterior mean at the places; variance that the noise does not explain is that of the process."""
    mean = values.mean()
    own = max(values.var() - noise, noise / 4)
    kernel = own * np.exp(-0.5 * ((places[:, None] - places[None]) ** 2).sum(axis=2))
    return np.asarray(mean + kernel @ np.linalg.solve(kernel + noise * np.eye(len(values)), values - mean))
