"""Starts one process of the service, `serve` or `worker`, with the settings of the environment's HOMOPHILY_* variables.

It ends with the thread that started it, so that a killed test run leaves no processes.
"""

import sys

from homophily_service.runtime.start import imports

role, parent = sys.argv[1:]
with imports():
    from homophily_service.runtime.logs import start_logging
    from homophily_service.runtime.processes import die_with_parent
    from homophily_service.runtime.settings import load_settings

    if role == "serve":
        from homophily_service.api.server import run_server
    else:
        from homophily_service.worker.metrics import serve_metrics
        from homophily_service.worker.supervisor import run_worker

die_with_parent(int(parent))
settings = load_settings()
start_logging(settings.log_level)
if role == "serve":
    run_server(settings)
else:
    run_worker(settings, None if settings.metrics_port is None else lambda worker: serve_metrics(worker, settings))
