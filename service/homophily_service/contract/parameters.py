"""The table of all parameters: name, type, range, method, whether it is searched, and a help text.

Client options, CLI options, the API's checks, the worker's conversion, search names, imports and tracking names all
follow from it. To add a parameter: a field in the proto, a row here, and the core's own parameter; then `make proto`.
It must stay light, as every CLI command imports it; :mod:`homophily_service.contract.values` reads the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

# Beyond this, one term of the energy is below the rounding error of another, and the linear systems are singular.
LARGEST = 1e12
SMALLEST = 1 / LARGEST
MOST_STEPS = 100_000
# Eigenvectors that a map starts from; each takes memory for every point.
MOST_VECTORS = 32


class Shares:
    """The type of ``class_prior``: a word, or a share or a pair of bounds for each class."""

    WORDS = ("estimate", "balanced")


@dataclass(frozen=True)
class Parameter:
    """A row of the table."""

    #: The core's name, which is also the client's, the command line's and MLflow's.
    name: str
    help: str
    #: int, float, bool, str for a word of the field's enum, or Shares.
    type: type = float
    #: Smallest and largest value; a ``low`` of None means any positive number.
    low: float | None = 0
    high: float = math.inf
    #: The proto's field, where its name differs.
    field: str = ""
    #: Whether only ERR has it.
    err_only: bool = False
    #: Whether it is searched by default, only when asked for, or never.
    searched: Literal["", "default", "asked"] = ""
    #: The value when none is given, for parameters that the service fills in itself.
    default: Any = None

    @property
    def field_name(self) -> str:
        """The proto's field."""
        return self.field or self.name


@dataclass(frozen=True)
class Group:
    """The parameters of one message."""

    #: The name of the message.
    message: str
    #: The name of the client's options class.
    title: str
    help: str
    rows: tuple[Parameter, ...]

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Parameter:
        return next(row for row in self.rows if row.name == name)

    def names(self) -> list[str]:
        """The core's names."""
        return [row.name for row in self.rows]


GRAPH = Group(
    "GraphParameters",
    "GraphOptions",
    "The graph of near points.",
    (
        Parameter(
            "n_neighbors",
            "Neighbours of each point; default 10, or 20 for sparse points.",
            int,
            1,
            10_000,
            searched="default",
            default=10,
        ),
        Parameter(
            "metric",
            "euclidean, or cosine, the default for sparse points; affinity or precomputed for a graph.",
            str,
            searched="default",
        ),
        Parameter(
            "weights",
            "Edge weights: local, self-tuning, global or fixed; default local.",
            str,
            searched="default",
            default="local",
        ),
        Parameter(
            "sigma_x",
            "Width of fixed weights; for other weights, a factor of their widths.",
            low=None,
            searched="default",
        ),
        Parameter("exponent", "Exponent of the distance in the weights, 1 or 2; default 2.", int, 1, 2, default=2),
        Parameter(
            "symmetrize", "How both directions of an edge are merged: max or mean; default mean.", str, default="mean"
        ),
        Parameter(
            "space",
            "Where neighbours are searched: input, principal or whitened; default input.",
            str,
            searched="default",
            default="input",
        ),
        Parameter(
            "n_directions", "Principal directions to use; default 50, or all if whitened.", int, 1, searched="default"
        ),
        Parameter("edge_share", "Share of the weight of given edges beside near points; default 0.5.", high=1.0),
    ),
)
SOLVER = Group(
    "SolverParameters",
    "SolverOptions",
    "How labels are spread over the graph.",
    (
        Parameter("method", "err or irr; default err.", str, default="err"),
        Parameter(
            "power",
            "The power p of the Laplacian; default 2, or 1 with sharp relationships.",
            int,
            1,
            8,
            searched="asked",
        ),
        Parameter("lambda1", "Weight of smooth values.", low=SMALLEST, high=LARGEST, searched="default"),
        Parameter("lambda2", "ERR: weight of smooth relationships.", high=LARGEST, err_only=True, searched="default"),
        Parameter(
            "sigma_f",
            "ERR: width of the relationship function.",
            low=SMALLEST,
            high=LARGEST,
            err_only=True,
            searched="default",
        ),
        Parameter(
            "repulsion",
            "ERR: factor of the force that drives points apart; default 0.65.",
            high=LARGEST,
            err_only=True,
            searched="asked",
        ),
        Parameter("max_iter", "ERR: the largest number of steps.", int, 0, MOST_STEPS, err_only=True),
        Parameter("tol", "Tolerance at which the solver stops.", field="tolerance"),
        Parameter("normalized", "Use the normalised Laplacian; default true.", bool),
        Parameter(
            "relationship_neighbors",
            "Sparse ERR: relate each point to this many nearest points only.",
            int,
            1,
            100_000,
            err_only=True,
        ),
        Parameter(
            "multiclass",
            "ERR with three or more classes: vector or one-vs-rest; default vector up to 4,000 points.",
            str,
        ),
        Parameter("class_prior", "Class shares: estimate, balanced, or a share or bounds low:high per class.", Shares),
        Parameter("sharpen", "Use sharp relationships; by default ERR does, up to 15 labels per class.", bool),
    ),
)
MAP = Group(
    "EmbeddingParameters",
    "MapOptions",
    "How a map is made.",
    (
        Parameter("data_weight", "Weight of staying near the start of the map.", high=LARGEST),
        Parameter("lambda2", "Weight of smooth relationships.", high=LARGEST),
        Parameter("lambda3", "Weight of a link.", high=LARGEST),
        Parameter("sigma_f", "Width of the relationship function.", low=SMALLEST, high=LARGEST),
        Parameter("continuation", "Start with a width this many times larger; default 5.", low=1, high=1e6),
        Parameter("repulsion", "Factor of the force that drives points apart.", high=LARGEST),
        Parameter("closure", "Infer more links from the given ones: true, false or two-class; default true.", str),
        Parameter("link_edges", "Weight of a link as an edge of the spectral map's graph.", high=LARGEST),
        Parameter("link_loss", "Cost of a must-link: log or squared; default log.", str),
        Parameter("relationship", "The relationship function: gaussian or cauchy; default gaussian.", str),
        Parameter("lambda2_per_link", "Divide lambda2 by the number of links; default false.", bool),
        Parameter("max_iter", "The largest number of steps.", int, 0, MOST_STEPS),
        Parameter("tol", "Tolerance at which the solver stops.", field="tolerance"),
        Parameter("normalized", "Use the normalised Laplacian; default true.", bool),
        Parameter("n_vectors", "Number of eigenvectors that the map starts from; default 8.", int, 1, MOST_VECTORS),
    ),
)
GROUPS = {"graph": GRAPH, "solver": SOLVER, "map": MAP}
ERR_ONLY = tuple(row.name for row in SOLVER if row.err_only)
#: Parameters that a search may vary, in the documented order; those of GRAPH first.
SEARCHED = tuple(row.name for row in (*GRAPH, *SOLVER) if row.searched)
SEARCHED_IN_GRAPHS = tuple(row.name for row in GRAPH if row.searched)
