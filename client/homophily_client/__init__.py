"""Client of the Homophily service: :class:`Client` blocks, :class:`AsyncClient` is awaited.

Examples
--------
>>> import numpy as np
>>> from homophily_client import Client
>>> client = Client("localhost:50051")
>>> X = np.concatenate([np.random.default_rng(0).normal(place, 1.0, (100, 2)) for place in (-5.0, 5.0)])
>>> model = client.fit(X, {0: "left", 199: "right"}).result()
>>> client.read_solution(model).labels[[1, 2, 150]].tolist()
['left', 'left', 'right']
>>> client.predict(model, [[-4.0, -4.0], [6.0, 4.0]]).labels.tolist()
['left', 'right']
>>> embedding = client.embed(model, must_link=[(0, 1)], cannot_link=[(0, 150)], n_clusters=2).result()
>>> client.read_embedding(embedding).coordinates.shape
(200, 2)
>>> client.close()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homophily_client._async.client import AsyncClient
    from homophily_client._async.handle import AsyncJobHandle
    from homophily_client._sync.client import Client
    from homophily_client._sync.handle import JobHandle
    from homophily_client.arrays import Map, Prediction, Solution
    from homophily_client.columns import TableError, TableWarning
    from homophily_client.edges import Edges
    from homophily_client.errors import (
        AlreadyExists,
        ClientError,
        DeadlineExceeded,
        FailedPrecondition,
        InvalidArgument,
        JobCancelled,
        JobFailed,
        LimitExceeded,
        NotFound,
        PermissionDenied,
        Unauthenticated,
        Unavailable,
        Violation,
    )
    from homophily_client.labels import LabelColumn
    from homophily_client.options import GraphOptions, MapOptions, SolverOptions
    from homophily_client.parameters import JobOptions, SearchOptions
    from homophily_client.results import (
        ClassShare,
        Column,
        Dataset,
        DatasetBase,
        DatasetSource,
        Embedding,
        Evaluation,
        Graph,
        Job,
        JobEvent,
        JobState,
        LabelStep,
        LinkCounts,
        Model,
        Progress,
        ReliabilityBin,
        Search,
        ServerInfo,
        SuspiciousLabel,
        TableSchema,
        Trace,
        Trial,
    )
    from homophily_client.suggestions import (
        Contribution,
        Explanation,
        Explanations,
        HeldPlace,
        HoldingLink,
        PairSuggestion,
        PointSuggestion,
        Suggestions,
    )
    from homophily_client.tables import TableOptions

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncJobHandle",
    "ClassShare",
    "Client",
    "ClientError",
    "Column",
    "Contribution",
    "Dataset",
    "DatasetBase",
    "DatasetSource",
    "DeadlineExceeded",
    "Edges",
    "Embedding",
    "Evaluation",
    "Explanation",
    "Explanations",
    "FailedPrecondition",
    "Graph",
    "GraphOptions",
    "HeldPlace",
    "HoldingLink",
    "InvalidArgument",
    "Job",
    "JobCancelled",
    "JobEvent",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobState",
    "LabelColumn",
    "LabelStep",
    "LimitExceeded",
    "LinkCounts",
    "Map",
    "MapOptions",
    "Model",
    "NotFound",
    "PairSuggestion",
    "PermissionDenied",
    "PointSuggestion",
    "Prediction",
    "Progress",
    "ReliabilityBin",
    "Search",
    "SearchOptions",
    "ServerInfo",
    "Solution",
    "SolverOptions",
    "Suggestions",
    "SuspiciousLabel",
    "TableError",
    "TableOptions",
    "TableSchema",
    "TableWarning",
    "Trace",
    "Trial",
    "Unauthenticated",
    "Unavailable",
    "Violation",
    "__version__",
]

#: The module of each exported name. They are loaded when first used: the service needs only the stubs.
_MODULES = {
    "AlreadyExists": "errors",
    "AsyncClient": "_async.client",
    "AsyncJobHandle": "_async.handle",
    "ClassShare": "results",
    "Client": "_sync.client",
    "ClientError": "errors",
    "Column": "results",
    "Contribution": "suggestions",
    "Dataset": "results",
    "DatasetBase": "results",
    "DatasetSource": "results",
    "DeadlineExceeded": "errors",
    "Edges": "edges",
    "Embedding": "results",
    "Evaluation": "results",
    "Explanation": "suggestions",
    "Explanations": "suggestions",
    "HeldPlace": "suggestions",
    "HoldingLink": "suggestions",
    "FailedPrecondition": "errors",
    "Graph": "results",
    "GraphOptions": "options",
    "InvalidArgument": "errors",
    "Job": "results",
    "JobCancelled": "errors",
    "JobEvent": "results",
    "JobFailed": "errors",
    "JobHandle": "_sync.handle",
    "JobOptions": "parameters",
    "JobState": "results",
    "LabelColumn": "labels",
    "LimitExceeded": "errors",
    "LabelStep": "results",
    "LinkCounts": "results",
    "Map": "arrays",
    "MapOptions": "options",
    "Model": "results",
    "NotFound": "errors",
    "PairSuggestion": "suggestions",
    "PermissionDenied": "errors",
    "PointSuggestion": "suggestions",
    "Prediction": "arrays",
    "Progress": "results",
    "ReliabilityBin": "results",
    "Search": "results",
    "SearchOptions": "parameters",
    "ServerInfo": "results",
    "Solution": "arrays",
    "SolverOptions": "options",
    "Suggestions": "suggestions",
    "SuspiciousLabel": "results",
    "TableError": "columns",
    "TableOptions": "tables",
    "TableSchema": "results",
    "TableWarning": "columns",
    "Trace": "results",
    "Trial": "results",
    "Unauthenticated": "errors",
    "Unavailable": "errors",
    "Violation": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
