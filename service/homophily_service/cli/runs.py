"""Links to the pages of jobs' runs in MLflow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

if TYPE_CHECKING:
    from homophily_client import Job

# How long a command may wait for MLflow's pages before it leaves their address out.
ANSWER_SECONDS = 1.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
