"""The records that a search returns and takes: plain values that JSON can carry to another machine and back."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

Stage = Literal["graph", "relationships"]
Method = Literal["irr", "err"]
Parameters = dict[str, Any]


class Group(NamedTuple):
    """Trials that share a graph, and the solver's parameters of each.

    Examples
    --------
    >>> group = Group(0, "graph", "irr", {"n_neighbors": 10}, ({"lambda1": 0.01},))
    >>> Group.from_json(group.to_json()) == group
    True
    """

    number: int
    """The number of its first trial, counted from 0 through the search; the others follow."""
    stage: Stage
    """The stage of the search: "graph" or "relationships"."""
    method: Method
    """What its trials are: IRR or ERR fits."""
    graph: Parameters
    """Parameters of :class:`~homophily.KNNGraph`; empty when the graph is given."""
    trials: tuple[Parameters, ...]
    """Parameters of the classifier for each trial, those of the graph aside."""

    def to_json(self) -> dict[str, Any]:
        """The group in what JSON can hold."""
        return {**self._asdict(), "trials": list(self.trials)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The group of a document."""
        return cls(**{**document, "trials": tuple(document["trials"])})


class Result(NamedTuple):
    """How one trial did on the labels that were held out."""

    error: float | None
    """Share of wrong answers; None if the trial was not begun."""
    loss: float | None
    """Mean calibrated log-loss, see :func:`homophily.selection.evaluate`: finer than the error."""
    held_out: int
    """Number of answers that both are means of."""
    seconds: float
    """Seconds that the trial took."""
    pruned: bool = False
    """Whether it was stopped or left out, because it could no longer win or time was up."""


class Outcome(NamedTuple):
    """The outcome of a group: a result for each of its trials, in their order."""

    group: Group
    """The group as :meth:`homophily.Search.ask` returned it."""
    results: tuple[Result, ...]
    """A result for each of its trials."""
    seconds: float
    """Seconds that the group took."""
    late: bool = False
    """Whether time was up before its last trial began."""
    ended: float = 0.0
    """Seconds from the start of the search to the end of the group; the driver of the search sets it."""

    def to_json(self) -> dict[str, Any]:
        """The outcome in what JSON can hold."""
        results = [result._asdict() for result in self.results]
        return {**self._asdict(), "group": self.group.to_json(), "results": results}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """The outcome of a document."""
        results = tuple(Result(**result) for result in document["results"])
        return cls(**{**document, "group": Group.from_json(document["group"]), "results": results})


class Trial(NamedTuple):
    """A row of the table of trials."""

    number: int
    """Its number, counted from 0 through the search."""
    stage: Stage
    """The stage of the search: "graph" or "relationships"."""
    method: Method
    """What was fitted: IRR or ERR."""
    parameters: Parameters
    """Of graph and solver together."""
    error: float | None
    """Share of wrong answers among the labels that were held out; None if the trial was not begun."""
    loss: float | None
    """Mean calibrated log-loss of these answers."""
    held_out: int
    """Number of answers that both are means of."""
    seconds: float
    """Seconds that the trial took."""
    pruned: bool
    """Whether it was stopped or left out, because it could no longer win or time was up."""


class Best(NamedTuple):
    """The parameters chosen, and the trial they were tried in."""

    method: Method
    """What to fit: IRR or ERR."""
    graph: Parameters
    """Parameters of :class:`~homophily.KNNGraph`; empty when the graph is given."""
    solver: Parameters
    """Parameters of the classifier, those of the graph aside."""
    error: float | None
    """Share of wrong answers of the trial."""
    loss: float | None
    """Mean calibrated log-loss of the trial."""
    trial: int | None
    """None if time was up before any trial of the last stage, which then keeps where it begins."""

    @property
    def parameters(self) -> Parameters:
        """Of graph and solver together."""
        return {**self.graph, **self.solver}
