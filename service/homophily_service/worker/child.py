"""The process that computes: kept warm, one job at a time; it may be killed at any moment."""

from __future__ import annotations

import logging
import os

from homophily.device.backend import get_backend, select_device
from homophily.exceptions import DeviceFailedError, DeviceUnavailableError
from homophily_client._pb.job_pb2 import Progress
from homophily_service.contract.errors import DeviceFailed, InternalError, ServiceError
from homophily_service.contract.internal_pb2 import Answer, Ready, Waiting
from homophily_service.contract.job_errors import job_error
from homophily_service.contract.kinds import KINDS
from homophily_service.contract.tasks import Task
from homophily_service.jobs.compute import compute
from homophily_service.jobs.warm import warm_up, warm_up_device, warm_up_maps
from homophily_service.runtime.logs import about, start_logging
from homophily_service.runtime.processes import begin, fair_memory, fair_threads, limit_memory
from homophily_service.storage.scratch import remove_abandoned
from homophily_service.storage.stores import Stores

# Slightly nice: jobs must not starve while calls keep the cores busy.
NICENESS = 3
_log = logging.getLogger(__name__)


def main() -> None:
    """Serve the supervisor until it ends."""
    connection, settings = begin()
    start_logging(settings.log_level)
    remove_abandoned(settings)
    stores, threads = Stores.open(settings), fair_threads(settings)
    try:
        backend = select_device(settings.device)
    except DeviceUnavailableError as error:
        _log.error("cannot compute on %s: %s", settings.device, error)
        raise SystemExit(1) from None
    if backend == "numpy":
        # A GPU's driver reserves more than it uses.
        limit_memory(fair_memory(settings))
    warm_up(threads)
    warm_up_maps(threads)
    if get_backend(backend).on_device:
        try:
            warm_up_device(backend)
        except DeviceFailedError as error:
            _log.error("cannot compute on %s: %s", settings.device, error)
            raise SystemExit(1) from None

    def answer(message: Answer) -> None:
        try:
            connection.send_bytes(message.SerializeToString())
        except OSError:
            # The supervisor is gone; another worker gets the job.
            raise SystemExit from None

    def report(progress: Progress) -> None:
        answer(Answer(progress=progress))

    # From now on, processes that answer calls go first on shared cores.
    os.nice(NICENESS)
    answer(Answer(ready=Ready(kinds=KINDS)))
    while True:
        try:
            task = Task.decode(connection.recv_bytes())
        except (EOFError, OSError):
            # The supervisor has ended; an OSError if it was killed before it read all answers.
            return
        about(task)
        try:
            outcome = compute(task, stores, settings, threads, report, backend)
            end = Answer(waiting=outcome) if isinstance(outcome, Waiting) else Answer(result=outcome)
        except DeviceFailed as error:
            _log.exception("the GPU failed")
            answer(Answer(error=job_error(error)))
            raise SystemExit(1) from None
        except ServiceError as error:
            end = Answer(error=job_error(error))
        except Exception:
            _log.exception("a job ended with an internal error")
            end = Answer(error=job_error(InternalError("an internal error of the service; see its log")))
        answer(end)
        about(None)
