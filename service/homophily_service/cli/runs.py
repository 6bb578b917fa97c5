"""What MLflow has of jobs: the pages of their runs, and their registered models."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from homophily_service.cli.screen import err, print_status

if TYPE_CHECKING:
    from homophily_client import Client, Job, JobHandle

# How long a command may wait for MLflow's pages before it leaves their address out.
ANSWER_SECONDS = 1.0
# How long a command waits for the registration of a model, which takes some seconds if MLflow answers.
REGISTRATION_SECONDS = 60.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_tracking(client: Client) -> None:
    """Raise FailedPrecondition if the service does not send runs to MLflow, so that it can register no model."""
    from homophily_service.contract.errors import FailedPrecondition

    if not client.server_info().tracking:
        raise FailedPrecondition(
            "the service cannot register models: MLflow is not installed on its machine, or its setting `tracking` is "
            "off. Install it there (pip install 'homophily[tracking]') and restart the service, or leave out --register"
        )


def await_registration(job: JobHandle[Any], name: str, longest: float) -> None:
    """Wait until the model of an ended job is registered, or say that it is pending."""
    from homophily_client import FailedPrecondition, Unavailable
    from homophily_service.cli.show import short

    seconds = max(0.0, min(REGISTRATION_SECONDS, longest))
    waiting = f"Waiting for MLflow to register the model as {name} …"
    if not err.is_terminal:
        print_status(waiting)
    try:
        with err.status(waiting) if err.is_terminal else nullcontext():
            job.registered(seconds)
    except (TimeoutError, Unavailable):
        print_status(
            f"pending: the model is made, but after {seconds:.0f} s not yet registered as {name}; that happens once "
            f"MLflow answers, and homophily watch {short(job.name)} --registered waits for it.",
            "yellow",
        )
    except FailedPrecondition:
        # Raised again by `check_registration`, after the outcome is shown.
        pass


def check_registration(job: JobHandle[Any]) -> None:
    """Raise FailedPrecondition if the model was to be registered and never will be."""
    if job.info.tracking_complete and not job.info.registered_version:
        job.registered()


def run_link(job: Job) -> str:
    """The address of the page of a job's run; empty if nothing serves it there at present."""
    pages = job.tracking_url.partition("/#/")[0]
    if not job.tracking_run or urlsplit(pages).scheme not in ("http", "https"):
        return ""
    served: list[bool] = []
    # In a thread: a timeout of urllib does not limit the resolution of names.
    asking = threading.Thread(target=lambda: served.append(_serves(pages, job.tracking_run)), daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    return job.tracking_url if any(served) else ""


def _serves(pages: str, run: str) -> bool:
    """Whether an MLflow with this run answers, or something that wants a login first."""
    direct = [ProxyHandler({})] if urlsplit(pages).hostname in _LOOPBACK else []
    try:
        with build_opener(*direct).open(f"{pages}/api/2.0/mlflow/runs/get?run_id={run}", timeout=ANSWER_SECONDS):
            return True
    except HTTPError as error:
        with error:
            return error.code == 401
    except (OSError, ValueError):
        return False
