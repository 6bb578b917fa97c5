"""Computes a job of any kind, in the child process: reads the stores, writes arrays, and leaves the queue alone."""

from __future__ import annotations

from homophily.exceptions import DeviceFailedError
from homophily.graph.computing import BackendName
from homophily_service.contract.errors import DeviceFailed, InvalidRequest, LimitExceeded, ServiceError
from homophily_service.contract.internal_pb2 import Waiting
from homophily_service.contract.job_errors import refusal
from homophily_service.contract.kinds import KINDS, load
from homophily_service.contract.tasks import Task
from homophily_service.jobs.work import Report, Stage, Work, forget_peak_memory
from homophily_service.runtime.settings import Settings
from homophily_service.storage.stores import Stores


def compute(
    task: Task, stores: Stores, settings: Settings, threads: int, report: Report, backend: BackendName = "numpy"
) -> bytes | Waiting:
    """The job's serialised result, or the jobs that it has to wait for; a ServiceError if it fails."""
    forget_peak_memory()
    work = Work(task, stores, settings, threads, Stage(report), backend)
    try:
        result: bytes | Waiting = load(KINDS[task.kind].compute)(work)
        return result
    except ServiceError:
        raise
    except DeviceFailedError as error:
        raise DeviceFailed(str(error)) from error
    except ValueError as error:
        raise refusal(error) from error
    except ArithmeticError as error:
        raise InvalidRequest("solver", f"its values differ too much in size for these points: {error}") from error
    except MemoryError as error:
        # The error about a GPU's memory says what to do.
        details = f": {error}" if str(error) else ""
        raise LimitExceeded(
            f"the job needs more memory than this worker has{details}", reason="OUT_OF_MEMORY"
        ) from error
