"""How a fit went: the optimiser's way, the answers against labels that were not used, the search for parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from homophily_service._pb import model_pb2
from homophily_service.client.parameters import to_dict


@dataclass(frozen=True)
class Trace:
    """The way of the optimiser: one entry a step, the start first. Long ways are thinned out."""

    iterations: tuple[int, ...]
    energies: tuple[float, ...]
    #: Relative to that at the start.
    gradient_norms: tuple[float, ...]
    #: The energy evaluations so far.
    evaluations: tuple[int, ...]

    @classmethod
    def from_message(cls, message: model_pb2.Trace) -> Trace | None:
        """Read a message; None for an empty one."""
        if not message.energies:
            return None
        return cls(
            iterations=tuple(message.iterations),
            energies=tuple(message.energies),
            gradient_norms=tuple(message.gradient_norms),
            evaluations=tuple(message.evaluations),
        )


@dataclass(frozen=True)
class ReliabilityBin:
    """Answers that were given with about the same confidence."""

    #: The mean of the largest probability.
    confidence: float
    #: The share of right answers.
    accuracy: float
    points: int


@dataclass(frozen=True)
class Evaluation:
    """How well the answers agree with labels that were not used."""

    #: The labels compared with.
    points: int
    error_rate: float
    #: Points by true class (row) and answer (column), in the order of the model's classes. Labels of other classes are
    #: wrong, but not listed. Empty for more than 100 classes.
    confusion: tuple[tuple[int, ...], ...]
    #: Probabilities against facts; empty for a model that is not calibrated.
    reliability: tuple[ReliabilityBin, ...]

    @classmethod
    def from_message(cls, message: model_pb2.Evaluation) -> Evaluation | None:
        """Read a message; None for an empty one."""
        if not message.points:
            return None
        counts, width = list(message.confusion), round(len(message.confusion) ** 0.5)
        return cls(
            points=message.points,
            error_rate=message.error_rate,
            confusion=tuple(tuple(counts[row * width : (row + 1) * width]) for row in range(width)),
            reliability=tuple(ReliabilityBin(one.confidence, one.accuracy, one.points) for one in message.reliability),
        )


@dataclass(frozen=True)
class Trial:
    """Parameters that were tried."""

    number: int
    #: 1: the graph and IRR, 2: ERR.
    stage: int
    graph_parameters: dict[str, Any]
    solver_parameters: dict[str, Any]
    #: The share of wrong answers among the labels that were held out; None if the trial was not begun.
    error_rate: float | None
    #: The mean log-loss of these answers.
    score: float | None
    seconds: float
    #: True if it was given up, or not begun.
    pruned: bool

    @classmethod
    def from_message(cls, message: model_pb2.Trial) -> Trial:
        """Read a message."""
        return cls(
            number=message.number,
            stage=message.stage,
            graph_parameters=to_dict(message.graph),
            solver_parameters=to_dict(message.solver),
            error_rate=message.error_rate if message.HasField("error_rate") else None,
            score=message.score if message.HasField("score") else None,
            seconds=message.seconds,
            pruned=message.pruned,
        )


@dataclass(frozen=True)
class Search:
    """The search that found a model's parameters."""

    trials: tuple[Trial, ...]
    #: The number of the trial whose parameters were taken; None if the time was over before it came to that.
    best: int | None

    @classmethod
    def from_message(cls, message: model_pb2.SearchSummary) -> Search | None:
        """Read a message; None for an empty one."""
        if not message.trials:
            return None
        best = message.best if message.HasField("best") else None
        return cls(tuple(Trial.from_message(one) for one in message.trials), best)
