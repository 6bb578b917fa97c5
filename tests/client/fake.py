"""Just enough of a server to inject faults."""

from __future__ import annotations

import hashlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import numpy as np
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from homophily_client._pb import dataset_pb2, job_pb2, model_pb2
from homophily_client._pb import homophily_service_pb2_grpc as services
from homophily_client.tensors import to_tensor


class Fake(services.HomophilyServiceServicer):
    """Just enough of a server, and a list of faults: each call takes the next one of its method."""

    def __init__(self) -> None:
        self.faults: dict[str, list[Any]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, str]] = []
        self.jobs: dict[str, job_pb2.Job] = {}
        self.events: list[job_pb2.JobEvent] = []
        self.received = b""
        self.start: dataset_pb2.UploadStart | None = None
        self.dataset: dataset_pb2.Dataset | None = None
        #: Seconds that GetModel takes, unless its caller leaves.
        self.slow = 0.0

    def fault(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append((method, request))
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else None

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def UploadDataset(
        self, request_iterator: Iterator[dataset_pb2.UploadDatasetRequest], context: Any
    ) -> dataset_pb2.UploadDatasetResponse:
        first = next(request_iterator).start
        fault = self.fault("UploadDataset", first, context)
        assert self.start in (None, first)
        self.start = first
        for number, request in enumerate(request_iterator):
            if isinstance(fault, int) and number == fault:
                abort(context, grpc.StatusCode.UNAVAILABLE)
            if request.WhichOneof("part") == "end":
                break
            if request.chunk.offset != len(self.received):
                abort(context, grpc.StatusCode.FAILED_PRECONDITION, reason="WRONG_OFFSET")
            self.received += request.chunk.data
        else:
            abort(context, grpc.StatusCode.INVALID_ARGUMENT)
        assert request.end.sha256 == hashlib.sha256(self.received).digest()
        self.dataset = dataset_pb2.Dataset(
            name=f"{first.parent}/datasets/{first.dataset_id}", shape=first.shape, sha256=request.end.sha256
        )
        if fault == "lost":
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return dataset_pb2.UploadDatasetResponse(dataset=self.dataset)

    def GetUpload(self, request: dataset_pb2.GetUploadRequest, context: Any) -> dataset_pb2.GetUploadResponse:
        lie = self.fault("GetUpload", request, context)
        if self.start is None or self.start.upload_id != request.upload_id:
            abort(context, grpc.StatusCode.NOT_FOUND)
        return dataset_pb2.GetUploadResponse(received_bytes=len(self.received) if lie is None else lie)

    def Fit(self, request: job_pb2.FitRequest, context: Any) -> job_pb2.FitResponse:
        fault = self.fault("Fit", request, context)
        if fault == "full":
            abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", retry=0.2)
        key = request.options.request_id
        job = job_pb2.Job(name=f"projects/default/jobs/j{len(self.jobs)}", state=job_pb2.JOB_STATE_QUEUED)
        job = self.jobs.setdefault(key, job)
        if fault == "lost":
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.FitResponse(job=job)

    def WaitJob(self, request: job_pb2.WaitJobRequest, context: Any) -> job_pb2.WaitJobResponse:
        answer = self.fault("WaitJob", request, context)
        if answer is None:
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.WaitJobResponse(job=answer)

    def GetJob(self, request: job_pb2.GetJobRequest, context: Any) -> job_pb2.GetJobResponse:
        answer = self.fault("GetJob", request, context)
        if answer is None:
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.GetJobResponse(job=answer)

    def WatchJob(self, request: job_pb2.WatchJobRequest, context: Any) -> Iterator[job_pb2.WatchJobResponse]:
        breaks_after = self.fault("WatchJob", request, context)
        for event in self.events:
            if event.sequence > request.after_sequence:
                yield job_pb2.WatchJobResponse(event=event)
            if event.sequence == breaks_after:
                abort(context, grpc.StatusCode.UNAVAILABLE)
        if breaks_after == "silently":
            return
        job = job_pb2.Job(name=request.name, state=job_pb2.JOB_STATE_CANCELLED)
        yield job_pb2.WatchJobResponse(job=job)

    def DeleteJob(self, request: job_pb2.DeleteJobRequest, context: Any) -> job_pb2.DeleteJobResponse:
        fault = self.fault("DeleteJob", request, context)
        found = [key for key, job in self.jobs.items() if job.name == request.name]
        if not found:
            abort(context, grpc.StatusCode.NOT_FOUND)
        del self.jobs[found[0]]
        if fault == "lost":
            abort(context, grpc.StatusCode.UNAVAILABLE)
        return job_pb2.DeleteJobResponse()

    def GetModel(self, request: model_pb2.GetModelRequest, context: Any) -> model_pb2.GetModelResponse:
        fault = self.fault("GetModel", request, context)
        ends = time.monotonic() + self.slow
        while time.monotonic() < ends and context.is_active():
            time.sleep(0.01)
        if fault == "mangled":
            # Details that contradict the status, as a proxy may make them.
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff"),))
            context.abort(grpc.StatusCode.DATA_LOSS, "bits were lost")
        classes = model_pb2.ClassValues(strings=model_pb2.StringValues(values=["cat", "dog"]))
        return model_pb2.GetModelResponse(model=model_pb2.Model(name=request.name, point_count=10, classes=classes))

    def ReadSolution(
        self, request: model_pb2.ReadSolutionRequest, context: Any
    ) -> Iterator[model_pb2.ReadSolutionResponse]:
        breaks_at = self.fault("ReadSolution", request, context)
        for start in range(request.start, 10, 3):
            if start == breaks_at:
                abort(context, grpc.StatusCode.UNAVAILABLE)
            count = min(3, 10 - start)
            rows = np.arange(start, start + count)
            tensors = [to_tensor((rows % 2).astype(np.int32)), to_tensor(rows[:, None] * 0.5)]
            yield model_pb2.ReadSolutionResponse(start=start, count=count, tensors=tensors)

    def ListModels(self, request: model_pb2.ListModelsRequest, context: Any) -> model_pb2.ListModelsResponse:
        self.fault("ListModels", request, context)
        page = int(request.page_token or 0)
        models = [model_pb2.Model(name=f"projects/default/models/m{page}")]
        return model_pb2.ListModelsResponse(models=models, next_page_token=str(page + 1) if page < 2 else "")


def abort(context: Any, code: grpc.StatusCode, reason: str = "", retry: float | None = None) -> None:
    """End a call as the server does."""
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason)] if reason else []
    if retry is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(retry * 1e9))))
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    number: int = code.value[0]
    context.abort_with_status(rpc_status.to_status(status_pb2.Status(code=number, message="no", details=packed)))


@contextmanager
def slow_proxy(port: int, delay: float) -> Iterator[int]:
    """A port that takes connections at once, and passes their bytes on to another port after a delay."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            time.sleep(delay)
            with socket.create_connection(("127.0.0.1", port)) as server:
                upwards = threading.Thread(target=copy, args=(self.request, server))
                upwards.start()
                copy(server, self.request)
                upwards.join()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()
            thread.join()
