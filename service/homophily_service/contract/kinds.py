"""The kinds of jobs. No other module compares their names; everything that differs by kind is a field here.

To add a kind: its messages and its number in the proto, a row here, its check in :mod:`homophily_service.jobs.checks`
and its computing in a module of :mod:`homophily_service.jobs`, and the call that starts it in the API and the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf.message import Message

from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2
from homophily_client.names import DatasetName, EmbeddingName, ModelName, ResourceName
from homophily_service.contract import internal_pb2

Fitted = model_pb2.Model | embedding_pb2.Embedding
Made = Fitted | dataset_pb2.Dataset


@dataclass(frozen=True)
class Kind:
    """A kind of job."""

    #: The name that is stored, logged, counted and shown.
    name: str
    number: job_pb2.JobKind.ValueType
    request: type[Message]
    result: type[Message]
    #: The field of a Job that holds the result.
    outcome: str
    #: What computes it, as ``module:function``; only the computing process loads it.
    compute: str
    #: What refuses wrong requests before they are queued; empty for jobs that only other jobs ask for.
    check: str = ""
    #: The resource that it makes, if any.
    makes: type[ResourceName] | None = None
    #: Whether it has a run with the tracking server, and is measured by phase and engine.
    is_tracked: bool = False

    def fitted(self, outcome: bytes) -> Fitted | None:
        """The model or embedding that a job made."""
        made = self.made(outcome)
        return None if isinstance(made, dataset_pb2.Dataset) else made

    @property
    def made_field(self) -> str:
        """The field of the result that holds what was made."""
        return self.makes.collection.removesuffix("s") if self.makes is not None else ""

    @property
    def id_field(self) -> str:
        """The field of the request that names what is to be made."""
        return f"{self.made_field}_id"

    def made(self, outcome: bytes) -> Made | None:
        """What a job made, read from its serialised result; None if it made nothing new."""
        result = self.result.FromString(outcome)
        # A dataset that was there already.
        is_old = isinstance(result, job_pb2.CreateDatasetResult) and result.unchanged
        return getattr(result, self.made_field) if self.made_field and not is_old else None

    def made_name(self, project: str, job_id: str, request: Any) -> ResourceName:
        """The name of what a job makes."""
        assert self.makes is not None
        return self.makes(project, getattr(request, self.id_field) or job_id)


def load(entry_point: str) -> Callable[..., Any]:
    """Import the function given as ``module:function``."""
    module, _, name = entry_point.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


_JOBS = "homophily_service.jobs"
FIT = Kind(
    "fit",
    job_pb2.JOB_KIND_FIT,
    job_pb2.FitRequest,
    job_pb2.FitResult,
    "fit",
    f"{_JOBS}.fit:fit",
    f"{_JOBS}.checks:check_fit",
    ModelName,
    is_tracked=True,
)
TRANSDUCE = Kind(
    "transduce",
    job_pb2.JOB_KIND_TRANSDUCE,
    job_pb2.TransduceRequest,
    job_pb2.TransduceResult,
    "transduce",
    f"{_JOBS}.fit:transduce",
    f"{_JOBS}.checks:check_transduce",
    ModelName,
    is_tracked=True,
)
EMBED = Kind(
    "embed",
    job_pb2.JOB_KIND_EMBED,
    job_pb2.EmbedRequest,
    job_pb2.EmbedResult,
    "embed",
    f"{_JOBS}.embed:embed",
    f"{_JOBS}.checks:check_embed",
    EmbeddingName,
    is_tracked=True,
)
IMPORT = Kind(
    "import",
    job_pb2.JOB_KIND_IMPORT,
    job_pb2.ImportModelRequest,
    job_pb2.ImportResult,
    "imported",
    "homophily_service.tracking.import_:import_model",
    f"{_JOBS}.checks:check_import",
    ModelName,
)
TRIAL = Kind(
    "trial",
    job_pb2.JOB_KIND_TRIAL,
    internal_pb2.TrialRequest,
    job_pb2.TrialResult,
    "trial",
    f"{_JOBS}.search:try_group",
)
CREATE_DATASET = Kind(
    "create-dataset",
    job_pb2.JOB_KIND_CREATE_DATASET,
    job_pb2.CreateDatasetRequest,
    job_pb2.CreateDatasetResult,
    "create_dataset",
    f"{_JOBS}.create_dataset:create_dataset",
    f"{_JOBS}.checks:check_create_dataset",
    DatasetName,
)
APPEND_POINTS = Kind(
    "append-points",
    job_pb2.JOB_KIND_APPEND_POINTS,
    job_pb2.AppendPointsRequest,
    job_pb2.AppendPointsResult,
    "append_points",
    f"{_JOBS}.append:append_points",
    f"{_JOBS}.checks:check_append_points",
    DatasetName,
)
KINDS = {kind.name: kind for kind in (FIT, TRANSDUCE, EMBED, IMPORT, TRIAL, CREATE_DATASET, APPEND_POINTS)}
