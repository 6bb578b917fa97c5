"""What the service suggests to ask next, and how it explains answers, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from homophily_client._pb import suggestion_pb2
from homophily_client.records import Record, named


@dataclass(frozen=True, kw_only=True)
class PointSuggestion(Record, of=suggestion_pb2.PointSuggestion):
    """A point worth a label, and why; ``str()`` gives the reason in words."""

    point: int
    #: Its worth by the strategy; good for comparison within one answer only.
    score: float
    #: "unlabelled-component", "far" or "between".
    reason: str
    #: Its two most probable classes, positions in the model's classes; none where no label reaches.
    class_positions: tuple[int, ...]
    component_points: int = field(metadata=named("component_point_count"))
    #: The reason in words.
    text: str
    #: Its id, if its table had an id column.
    id: str | None

    def __str__(self) -> str:
        return f"{self.id or self.point}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class PairSuggestion(Record, of=suggestion_pb2.PairSuggestion):
    """A pair worth a comparison: the same, or different? ``str()`` gives the reason in words."""

    first: int
    second: int
    #: How much the answer would move; good for comparison within one answer only.
    score: float
    #: How probably they belong together, by what is known.
    together: float
    #: The points around either that the answer concerns.
    first_points: int = field(metadata=named("first_point_count"))
    second_points: int = field(metadata=named("second_point_count"))
    #: The reason in words.
    text: str
    #: Their ids, if their table had an id column.
    first_id: str | None
    second_id: str | None

    def __str__(self) -> str:
        return f"{self.first_id or self.first} and {self.second_id or self.second}: {self.text}"


@dataclass(frozen=True)
class Suggestions(Record, of=suggestion_pb2.SuggestResponse):
    """What to ask a person next, the best first: points for a model, pairs for an embedding."""

    #: The model's classes; empty for an embedding.
    classes: tuple[str, ...] | tuple[int, ...]
    points: tuple[PointSuggestion, ...]
    pairs: tuple[PairSuggestion, ...]


@dataclass(frozen=True, kw_only=True)
class Contribution(Record, of=suggestion_pb2.Contribution):
    """What a label adds to an answer."""

    point: int
    #: Its class, a position in the model's classes.
    class_position: int
    #: What it adds to the score; below 0, it speaks for the runner-up.
    value: float
    #: Its part of the sizes of all contributions, from 0 to 1.
    share: float
    #: Points on the shortest way through the graph to the label.
    path: tuple[int, ...]
    #: Its id, if its table had an id column.
    id: str | None


@dataclass(frozen=True, kw_only=True)
class Explanation(Record, of=suggestion_pb2.Explanation):
    """Why a point has its answer rather than the runner-up."""

    #: −1 for a new point.
    point: int
    #: The answer and the runner-up, positions in the model's classes.
    class_position: int
    runner_up_position: int
    #: The lead of the answer's score; with sharp relationships, of its share around the point.
    score: float
    #: The part of it that class shares brought in.
    offset: float
    #: What is left of it: 0 for IRR; for smooth ERR, what is not linear in the labels. With sharp relationships, what
    #: ends among points of the class that are not connected, within it, with any of its labels.
    remainder: float
    #: The score without the label that adds most, where there is a formula for it; with ``refit``, from a fit without
    #: that label, unless it is the only one of its class.
    score_without_largest: float | None
    #: The largest first.
    contributions: tuple[Contribution, ...]
    #: The number of labels that contribute at all.
    contributing: int = field(metadata=named("contributing_count"))


@dataclass(frozen=True, kw_only=True)
class HoldingLink(Record, of=suggestion_pb2.HoldingLink):
    """A link that holds a point in its place on a map."""

    #: One of its points.
    first: int
    #: The other.
    second: int
    #: Whether it is a must-link.
    together: bool
    #: The probability that a random walk from the point first meets a linked point here.
    share: float
    #: Points on the shortest way through the graph to the nearer end of the link.
    path: tuple[int, ...]
    #: The ids of its points, if their table had an id column.
    first_id: str | None
    second_id: str | None


@dataclass(frozen=True, kw_only=True)
class HeldPlace(Record, of=suggestion_pb2.HeldPlace):
    """What holds a point in its place on a map."""

    #: The point that is held.
    point: int
    #: The probability that the walk meets no linked point. All shares and this one add up to 1.
    free: float = field(metadata=named("free_share"))
    #: The largest share first.
    links: tuple[HoldingLink, ...]
    #: The number of links that the walk may meet at all.
    holding: int = field(metadata=named("holding_count"))


@dataclass(frozen=True)
class Explanations(Record, of=suggestion_pb2.ExplainResponse):
    """Which labels carry the answers for some points, or which links hold them in their places."""

    #: Empty for an embedding.
    classes: tuple[str, ...] | tuple[int, ...]
    #: For a model, one for each point, own points first.
    explanations: tuple[Explanation, ...]
    #: For an embedding, one for each point.
    places: tuple[HeldPlace, ...]
