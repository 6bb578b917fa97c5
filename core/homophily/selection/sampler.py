"""Proposals by Optuna's sampler, from the trials so far: the only place that knows Optuna."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from homophily.selection.records import Parameters


@dataclass(frozen=True)
class Dimension:
    """The range of one parameter, or its choices."""

    low: float = 0.0
    high: float = 1.0
    scale: Literal["linear", "log", "integer"] = "log"
    """"integer" is logarithmic too."""
    step: float = 2.0
    """A factor (a difference, if linear) over which errors change little: the unit of :meth:`position`."""
    choices: tuple[Any, ...] = ()

    def position(self, value: Any) -> float:
        """Where a value lies, in steps; choices are two steps apart."""
        if self.choices:
            return 2.0 * self.choices.index(value)
        if self.scale == "linear":
            return (float(value) - self.low) / self.step
        return math.log(float(value) / self.low) / math.log(self.step)

    def contains(self, value: Any) -> bool:
        """Whether the sampler accepts a trial with this value."""
        return value in self.choices if self.choices else self.low <= value <= self.high


def suggest(
    trials: list[tuple[Parameters, float]], dimensions: dict[str, Dimension], count: int, seed: int
) -> list[Parameters]:
    """``count`` proposals that the same trials (parameters and score) and seed always lead to, rounded to 3 digits."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "A search of more trials than its designed ones needs Optuna: pip install 'homophily[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=0)
    study = optuna.create_study(sampler=sampler)
    distributions = {name: _distribution(optuna, dimension) for name, dimension in dimensions.items()}
    for parameters, score in trials:
        values = {name: parameters[name] for name in dimensions}
        if all(dimension.contains(values[name]) for name, dimension in dimensions.items()):
            study.add_trial(optuna.trial.create_trial(params=values, distributions=distributions, value=score))
    asked = (study.ask(distributions).params.items() for _ in range(count))
    return [{name: rounded(value) if isinstance(value, float) else value for name, value in one} for one in asked]


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    if dimension.choices:
        return optuna.distributions.CategoricalDistribution(dimension.choices)
    if dimension.scale == "integer":
        return optuna.distributions.IntDistribution(int(dimension.low), int(dimension.high), log=True)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.scale == "log")


def rounded(value: float) -> float:
    """To three digits, as a person would write it."""
    return float(f"{value:.3g}")
