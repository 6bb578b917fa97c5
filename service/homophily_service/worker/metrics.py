"""Metrics of a worker on a machine of its own: whether it is alive and ready, and the memory of its devices.

The API has the metrics of jobs, from the database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from homophily_service.api.metrics import DeviceMetrics
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.runtime.settings import Settings
from homophily_service.worker.supervisor import Worker

_log = logging.getLogger(__name__)


class WorkerMetrics(Collector):
    """Metrics of one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def collect(self) -> Iterable[Metric]:
        """How long ago it last looked for work or renewed its lease, whether it can compute, and whether it does."""
        age = time.monotonic() - self.worker.beat
        yield GaugeMetricFamily(
            "homophily_worker_silent_seconds",
            "Seconds since the worker last looked for work or renewed its lease",
            value=age,
        )
        ready = float(self.worker.is_ready)
        yield GaugeMetricFamily("homophily_worker_ready", "Whether the worker can take a job", value=ready)
        busy = float(self.worker.busy)
        yield GaugeMetricFamily("homophily_worker_busy", "Whether the worker has a job", value=busy)

    def describe(self) -> Iterable[Metric]:
        """Nothing."""
        return []


def serve_metrics(worker: Worker, settings: Settings) -> int:
    """Open the endpoint, in a thread of its own; returns its port."""
    try:
        server, _ = start_http_server(settings.metrics_port or 0, settings.host)
    except OSError as error:
        raise FailedPrecondition(f"cannot listen on {settings.host} port {settings.metrics_port}: {error}") from error
    REGISTRY.register(WorkerMetrics(worker))
    REGISTRY.register(DeviceMetrics())
    _log.info("metrics on port %d", server.server_port)
    return int(server.server_port)
