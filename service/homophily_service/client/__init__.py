"""The Python client of the service. It needs gRPC, protobuf, NumPy and SciPy, nothing of the server."""

from homophily_service.client.answers import Map, Prediction, Solution
from homophily_service.client.client import Client
from homophily_service.client.errors import (
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
from homophily_service.client.fitting import Evaluation, ReliabilityBin, Search, Trace, Trial
from homophily_service.client.handle import JobHandle
from homophily_service.client.results import (
    Dataset,
    Embedding,
    Graph,
    Job,
    JobEvent,
    JobState,
    LinkCounts,
    Model,
    Progress,
)

__all__ = [
    "AlreadyExists",
    "Client",
    "ClientError",
    "Dataset",
    "DeadlineExceeded",
    "Embedding",
    "Evaluation",
    "FailedPrecondition",
    "Graph",
    "InvalidArgument",
    "Job",
    "JobCancelled",
    "JobEvent",
    "JobFailed",
    "JobHandle",
    "JobState",
    "LimitExceeded",
    "LinkCounts",
    "Map",
    "Model",
    "NotFound",
    "PermissionDenied",
    "Prediction",
    "Progress",
    "ReliabilityBin",
    "Search",
    "Solution",
    "Trace",
    "Trial",
    "Unauthenticated",
    "Unavailable",
    "Violation",
]
