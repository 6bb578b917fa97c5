"""The API as a server: ports, health, metrics, and a graceful stop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import REGISTRY, start_http_server

from homophily_client._pb import homophily_service_pb2, homophily_service_pb2_grpc, server_pb2
from homophily_service.api.admission import Admission, Authentication
from homophily_service.api.audit import Audit, start_audit
from homophily_service.api.batch_loader import BatchLoader
from homophily_service.api.datasets import Datasets
from homophily_service.api.embeddings import Embeddings
from homophily_service.api.inference import SERVICE as INFERENCE
from homophily_service.api.inference import Inference
from homophily_service.api.interceptors import Errors, Interceptors, Logging, Messages, Metrics
from homophily_service.api.jobs import Jobs
from homophily_service.api.metrics import ServiceMetrics
from homophily_service.api.models import Models
from homophily_service.api.questions import Questions
from homophily_service.api.threads import FairThreads
from homophily_service.api.tls import server_credentials
from homophily_service.api.tracing import Tracing
from homophily_service.api.watcher import Watcher
from homophily_service.contract.errors import FailedPrecondition, Unavailable
from homophily_service.contract.job_errors import lost_too_often
from homophily_service.predictor.pool import Predictors
from homophily_service.runtime.background import repeat
from homophily_service.runtime.ports import check_port
from homophily_service.runtime.processes import fair_threads, keep_freed_memory, keep_running
from homophily_service.runtime.settings import MIB, Settings, sends_runs
from homophily_service.runtime.telemetry import start_traces
from homophily_service.storage.database import Database
from homophily_service.storage.retention import sweep
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import Uploads

_log = logging.getLogger(__name__)

SERVICE = homophily_service_pb2.DESCRIPTOR.services_by_name["HomophilyService"].full_name
API_VERSION = homophily_service_pb2.DESCRIPTOR.package.rpartition(".")[2]
# Threads that wait for the database; uploads have their own.
THREADS, UPLOAD_THREADS = 16, 8
SECONDS_BETWEEN_PINGS = 5
# TLS connections are closed after this time, once their calls have ended: certificates are checked only on connecting.
CONNECTION_SECONDS = 3600.0
# How long a lease may be overdue before the job goes back to the queue.
SECONDS_LATE = 5.0


class Servicer(Datasets, Jobs, Models, Embeddings, Questions, homophily_service_pb2_grpc.HomophilyServiceServicer):
    """All calls of the service."""

    def __init__(self, settings: Settings, stores: Stores, watcher: Watcher, predictors: Predictors) -> None:
        super().__init__()
        self.settings, self.stores = settings, stores
        self.watcher, self.predictors = watcher, predictors
        self.looks = BatchLoader(stores.queue.placed)
        self.uploads, self.under_way = Uploads(settings, stores), set()
        # Separate: finishing a large upload takes minutes, during which other calls need threads.
        self.upload_threads = FairThreads(UPLOAD_THREADS, "upload")
        self._info = server_pb2.GetServerInfoResponse(
            version=version("homophily"), api_version=API_VERSION, tracking=sends_runs(settings)
        )

    async def GetServerInfo(self, *_: Any) -> server_pb2.GetServerInfoResponse:
        """Return the server's version."""
        return self._info


class Server:
    """Stores, servicer and background tasks, started and stopped together."""

    def __init__(self, settings: Settings) -> None:
        check_bind(settings)
        # Before anything is opened: a server that cannot listen leaves no store behind.
        check_port(settings.host, settings.port)
        self.settings = settings
        self._credentials = server_credentials(settings)
        self._traces = start_traces(settings, "api")
        self.stores = Stores.open(settings)
        self.port = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics: Any = None

    async def start(self) -> int:
        """Open the port, and return it."""
        settings = self.settings
        asyncio.get_running_loop().set_default_executor(FairThreads(THREADS, "store"))
        # Switch threads ten times as often as by default: answers that take milliseconds pass through several threads.
        sys.setswitchinterval(0.0005)
        await asyncio.to_thread(_prepare, self.stores.database)
        self.watcher = Watcher(self.stores.queue, settings.poll_seconds)
        self.predictors = Predictors(settings)
        self.servicer = Servicer(settings, self.stores, self.watcher, self.predictors)
        self.inference = Inference(self.servicer)
        self.health = health.aio.HealthServicer()
        self.server = grpc.aio.server(
            interceptors=[
                Interceptors(
                    [
                        *([] if self._traces is None else [Tracing(self._traces)]),
                        Logging(),
                        Metrics(),
                        Audit(settings),
                        Errors(),
                        Authentication(self.stores.tokens if settings.auth == "tokens" else None),
                        Admission(settings),
                        Messages(settings.max_message_bytes),
                    ]
                )
            ],
            options=_options(settings),
        )
        homophily_service_pb2_grpc.add_HomophilyServiceServicer_to_server(self.servicer, self.server)
        self.server.add_generic_rpc_handlers((self.inference.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        if has_reflection(settings):
            reflection.enable_server_reflection((SERVICE, INFERENCE, reflection.SERVICE_NAME), self.server)
        try:
            address = _address(settings.host, settings.port)
            if self._credentials is None:
                self.port = self.server.add_insecure_port(address)
            else:
                self.port = self.server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise FailedPrecondition(f"cannot listen on {settings.host} port {settings.port}: {error}") from error
        if settings.metrics_port is not None:
            self._start_metrics(settings.metrics_port)
        self._stop_audit = start_audit(settings)
        self.predictors.start()
        await self.server.start()
        # The empty service name is healthy as long as the process lives.
        await self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        self._tasks = [
            asyncio.create_task(task)
            for task in (
                self.watcher.run(),
                repeat("checking the database", self._report_health, 1.0),
                repeat("requeueing lost jobs", self._requeue_lost, SECONDS_LATE / 2),
                repeat("sweeping", self._sweep, settings.sweep_seconds),
            )
        ]
        warn_of_plain_tokens(settings)
        _log.info("serving on %s port %d", settings.host, self.port)
        return self.port

    async def stop(self) -> None:
        """Refuse new calls, let running ones end within the grace time, and close everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._set_ready(False)
        self.watcher.stop()
        await self.server.stop(self.settings.shutdown_grace)
        await asyncio.gather(*self.servicer.under_way, return_exceptions=True)
        await self.predictors.stop()
        if self._metrics is not None:
            server, collector = self._metrics
            server.shutdown()
            server.server_close()
            REGISTRY.unregister(collector)
        self._stop_audit()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.stop)
        self.stores.close()

    async def _report_health(self) -> None:
        """The service is ready while the database answers."""
        try:
            await asyncio.to_thread(self.stores.database.ping)
        except Exception as error:
            await self._set_ready(False)
            if not isinstance(error, Unavailable):
                raise
        else:
            await self._set_ready(True)

    async def _set_ready(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.health.set(SERVICE, status.SERVING if is_ready else status.NOT_SERVING)
        self.inference.is_ready = is_ready

    async def _requeue_lost(self) -> None:
        """Queue jobs again whose worker is lost; while all workers are busy, only the API can."""
        await asyncio.to_thread(self.stores.queue.requeue_lost, SECONDS_LATE, lost_too_often())

    async def _sweep(self) -> None:
        await asyncio.to_thread(sweep, self.stores, self.servicer.uploads, self.settings)

    def _start_metrics(self, port: int) -> None:
        try:
            server, _ = start_http_server(port, self.settings.host)
        except OSError as error:
            raise FailedPrecondition(f"cannot listen on {self.settings.host} port {port}: {error}") from error
        collector = ServiceMetrics(self.stores, tracks=sends_runs(self.settings))
        collector.ended.begin()
        REGISTRY.register(collector)
        self._metrics = (server, collector)
        _log.info("metrics on port %d", server.server_port)

    @property
    def metrics_port(self) -> int | None:
        """The port of the Prometheus endpoint, if there is one."""
        return None if self._metrics is None else int(self._metrics[0].server_port)


def _prepare(database: Database) -> None:
    """Migrate a database that only this server uses; a shared one is migrated by `homophily migrate`."""
    if database.is_embedded:
        database.migrate()
    database.check_version()


def check_bind(settings: Settings) -> None:
    """Refuse to listen beyond loopback without authentication."""
    if settings.auth == "none" and not settings.allow_insecure_bind and not _is_loopback(settings.host):
        raise FailedPrecondition(
            f"host {settings.host} is reachable from other machines, and auth is none: set auth to tokens, "
            "or allow_insecure_bind if you trust the network"
        )


def has_reflection(settings: Settings) -> bool:
    """Whether clients may use reflection. By default only those on this machine."""
    return _is_loopback(settings.host) if settings.reflection is None else settings.reflection


def warn_of_plain_tokens(settings: Settings) -> None:
    """Warn if tokens cross a network unencrypted."""
    if settings.auth == "tokens" and settings.tls_certificate is None and not _is_loopback(settings.host):
        _log.warning("tokens are sent to %s unencrypted: set tls_certificate, or use a proxy with TLS", settings.host)


def _is_loopback(host: str) -> bool:
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(address).split("%")[0]).is_loopback for address in found)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _options(settings: Settings) -> list[tuple[str, Any]]:
    has_age = settings.tls_certificate is not None
    age = [("grpc.max_connection_age_ms", int(1000 * CONNECTION_SECONDS))] if has_age else []
    return [
        *age,
        # gRPC refuses larger messages; up to this size the Messages interceptor does, with a better error.
        ("grpc.max_receive_message_length", settings.max_message_bytes + MIB),
        ("grpc.max_concurrent_streams", settings.max_calls),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_send_message_length", -1),
        # The bytes of a message that are buffered before it is read; by default they grow with the bandwidth.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", MIB),
        # Chunks of uploads come in one frame instead of in 64.
        ("grpc.http2.max_frame_size", MIB),
        # A second server on the same port must fail.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # Not min_recv_ping_interval_without_data_ms, which is ignored.
        ("grpc.http2.min_ping_interval_without_data_ms", 1000 * SECONDS_BETWEEN_PINGS),
        ("grpc.http2.max_ping_strikes", 10),
        # Notice clients that vanished.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def run_server(settings: Settings, started: Callable[[Server], None] | None = None) -> None:
    """Run the API and its workers until SIGTERM or SIGINT; ``started`` is called once the port is open."""
    keep_freed_memory()
    uvloop.run(serve(settings, started))


async def serve(settings: Settings, started: Callable[[Server], None] | None = None) -> None:
    """Run the API and its workers in the current event loop."""
    server = Server(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    threads, grace = fair_threads(settings), settings.shutdown_grace + 5.0
    workers = [
        asyncio.create_task(keep_running("homophily_service.worker.supervisor", one, threads, grace))
        for one in map(settings.of_worker, range(settings.workers))
    ]
    if settings.tracking and settings.tracker:
        workers.append(asyncio.create_task(keep_running("homophily_service.tracking.tracker", settings, 1, grace)))
    try:
        if started is not None:
            started(server)
        await stop.wait()
        _log.info("stopping")
    finally:
        for worker in workers:
            worker.cancel()
        for end in await asyncio.gather(server.stop(), *workers, return_exceptions=True):
            if isinstance(end, Exception):
                _log.error("error while stopping", exc_info=end)
