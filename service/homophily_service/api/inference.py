"""The Open Inference Protocol beside our own calls: stored models answer clients of Triton and KServe.

It is a translation of ``GetModel`` and ``Predict``: names, tokens, limits and errors are theirs.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

import grpc

from homophily_client._pb import model_pb2
from homophily_client.names import DEFAULT_PROJECT, ModelName
from homophily_service.api.access import allowed_name, caller
from homophily_service.api.models import Models
from homophily_service.contract import open_inference_pb2 as pb
from homophily_service.contract.errors import InvalidRequest, NotFound
from homophily_service.contract.open_inference import (
    PROBABILITIES,
    VERSION,
    metadata,
    points_of,
    response,
    wanted_outputs,
)
from homophily_service.storage.tokens import EVERY_PROJECT

_DESCRIPTOR = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = _DESCRIPTOR.full_name
#: Probes have no token, as those of the health service.
PROBES = (f"/{SERVICE}/ServerLive", f"/{SERVICE}/ServerReady")


class Inference:
    """The calls of the protocol."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.is_ready = False

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server needs to serve the calls."""
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                getattr(self, method.name),
                request_deserializer=getattr(pb, method.input_type.name).FromString,
                response_serializer=getattr(pb, method.output_type.name).SerializeToString,
            )
            for method in _DESCRIPTOR.methods
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def ServerLive(self, *_: Any) -> pb.ServerLiveResponse:
        """Whether the server runs."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, *_: Any) -> pb.ServerReadyResponse:
        """Whether the server can answer."""
        return pb.ServerReadyResponse(ready=self.is_ready)

    async def ServerMetadata(self, *_: Any) -> pb.ServerMetadataResponse:
        """The server's name and version."""
        return pb.ServerMetadataResponse(name="homophily", version=version("homophily"))

    async def ModelReady(self, request: pb.ModelReadyRequest, _: Any) -> pb.ModelReadyResponse:
        """Whether there is such a model."""
        name = _name(request.name, request.version, "name", "version")
        try:
            await self.models.described(name)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, _: Any) -> pb.ModelMetadataResponse:
        """What a model takes, and what it answers."""
        name = _name(request.name, request.version, "name", "version")
        model, _blob = await self.models.described(name)
        return metadata(request.name, model)

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        """Answers for new points, by a predictor process."""
        name = _name(request.model_name, request.model_version, "model_name", "model_version")
        model, _blob = await self.models.described(name)
        wanted = wanted_outputs(request, model)
        # In a thread: large messages would delay everybody's calls.
        points = await asyncio.to_thread(points_of, request, model)
        predict = model_pb2.PredictRequest(name=str(name), points=points, probabilities=PROBABILITIES in wanted)
        answer = await self.models.Predict(predict, context)
        return await asyncio.to_thread(response, request, answer, wanted)


def _name(name: str, given_version: str, field: str, version_field: str) -> ModelName:
    """A model by its name, or by its id in the project of the token."""
    if given_version not in ("", VERSION):
        raise InvalidRequest(version_field, f"must be empty or {VERSION}; got {given_version[:80]!r}")
    if "/" not in name:
        project = DEFAULT_PROJECT if caller.get() == EVERY_PROJECT else caller.get()
        name = f"projects/{project}/{ModelName.collection}/{name}"
    return allowed_name(ModelName, name, field)
