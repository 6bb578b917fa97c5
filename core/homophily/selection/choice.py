"""From trials to a choice: few held-out labels make the smallest error a matter of luck, so it is not simply taken."""

from __future__ import annotations

from homophily.selection.records import Parameters, Trial
from homophily.selection.sampler import Dimension


def rank(trials: list[Trial], dimensions: dict[str, Dimension], defaults: Parameters) -> list[Trial]:
    """Trials from the best to the worst."""

    def distance(trial: Trial) -> float:
        return sum(
            abs(dimension.position(trial.parameters[name]) - dimension.position(defaults[name]))
            for name, dimension in dimensions.items()
        )

    def value(trial: Trial) -> tuple[float, float, int]:
        assert trial.error is not None
        assert trial.loss is not None
        return trial.error + 0.1 * trial.loss, distance(trial), trial.number

    return sorted(trials, key=value)
